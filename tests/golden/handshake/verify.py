"""Computes the handshake's octets again with another library (Python cryptography, from Debian) and compares them with
vectors.txt beside it. Written from decision 0001 and the design page, not from the Rust code's structure."""

import pathlib
import struct
import sys

from cryptography.hazmat.primitives import hashes, hmac
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat


def framed(*parts):
    return b"".join(struct.pack(">I", len(part)) + part for part in parts)


def raw(public):
    return public.public_bytes(Encoding.Raw, PublicFormat.Raw)


lines = (pathlib.Path(__file__).parent / "vectors.txt").read_text().split()
v = {name: bytes.fromhex(value) for name, value in (line.split("=") for line in lines)}
faults = []


def same(name, octets):
    if v[name] != octets:
        faults.append(f"{name}: {octets.hex()} here, {v[name].hex()} in vectors.txt")


server, device = Ed25519PrivateKey.from_private_bytes(v["server_seed"]), Ed25519PrivateKey.from_private_bytes(v["device_seed"])
server_boot = X25519PrivateKey.from_private_bytes(v["server_boot_secret"])
device_boot = X25519PrivateKey.from_private_bytes(v["device_boot_secret"])
same("server_key", raw(server.public_key()))
same("device_key", raw(device.public_key()))
same("server_boot_key", raw(server_boot.public_key()))
same("device_boot_key", raw(device_boot.public_key()))

challenge = framed(b"kurrent/challenge/v1", v["nonce"], v["mac"], v["server_boot_key"], v["flags"])
same("challenge_signature", server.sign(challenge))
Ed25519PublicKey.from_public_bytes(v["server_key"]).verify(v["challenge_signature"], challenge)
answer = framed(
    b"kurrent/answer/v1", v["nonce"], v["mac"], v["uuid"], v["server_key"], v["device_boot_key"], v["server_boot_key"], v["flags"]
)
same("answer_signature", device.sign(answer))

shared = device_boot.exchange(X25519PublicKey.from_public_bytes(v["server_boot_key"]))
if shared != server_boot.exchange(X25519PublicKey.from_public_bytes(v["device_boot_key"])):
    faults.append("the two sides do not share a secret")
info = framed(b"kurrent/session/v1", v["mac"], v["device_boot_key"], v["server_boot_key"])
key = HKDF(algorithm=hashes.SHA256(), length=32, salt=v["nonce"], info=info).derive(shared)
same("session", key + v["nonce"] + v["mac"])
aad = framed(b"kurrent/sealed/v1", v["mac"], v["nonce"])
same("sealed", b"KSEALED1" + ChaCha20Poly1305(key).encrypt(bytes(12), v["plaintext"], aad))

proof = hmac.HMAC(v["report_key"], hashes.SHA256())
proof.update(framed(b"kurrent/stage1-report/v1") + v["report"])
same("report_proof", proof.finalize())

if faults:
    sys.exit("\n".join(faults))
print(f"{len(v)} values agree")
