"""A device with the existing Kurrent firmware, made with another library (Python cryptography, from Debian): with `make` it writes
p256.txt beside it, without it checks what stands there. The signature is ECDSA P-256 over SHA-256 of nonce (hex), MAC and hostname,
DER in base64; one with a plus sign is chosen, which arrives as a space from clients that decode queries as HTML forms."""

import base64
import pathlib
import sys

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

FILE = pathlib.Path(__file__).parent / "p256.txt"
NONCE, MAC, HOSTNAME = "5a" * 32, "52:54:00:00:00:01", "w1"
TEXT = (NONCE + MAC + HOSTNAME).encode()

if sys.argv[1:] == ["make"]:
    key = ec.generate_private_key(ec.SECP256R1())
    point = key.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
    signature = ""
    while "+" not in signature:
        signature = base64.b64encode(key.sign(TEXT, ec.ECDSA(hashes.SHA256()))).decode()
    FILE.write_text(f"nonce={NONCE}\nmac={MAC}\nhostname={HOSTNAME}\npublic_key={point.hex()}\nsig={signature}\n")

v = dict(line.split("=", 1) for line in FILE.read_text().split())
point = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), bytes.fromhex(v["public_key"]))
point.verify(base64.b64decode(v["sig"]), (v["nonce"] + v["mac"] + v["hostname"]).encode(), ec.ECDSA(hashes.SHA256()))
print("p256.txt holds")
