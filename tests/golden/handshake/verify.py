"""Computes every message of the handshake again with another library (Python cryptography, from Debian), compares it with
vectors.txt beside it, and verifies what stands there: signatures under the public keys, the sealed blob and the masked session by
opening them, the proof by its own check. Each verification is tried with one changed octet, too, which must be refused: so it is
known to look. Written from decisions 0001 and 0007, not from the Rust code's structure."""

import hashlib
import pathlib
import struct
import sys

from cryptography.exceptions import InvalidSignature, InvalidTag
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


def believes(check, octets):
    try:
        check(octets)
        return True
    except (InvalidSignature, InvalidTag, ValueError):
        return False


def verified(name, check, octets):
    """The octets as they stand are believed, and changed ones are not."""
    if not believes(check, octets):
        faults.append(f"{name}: does not verify here")
    for at in (0, len(octets) // 2, len(octets) - 1):
        changed = bytearray(octets)
        changed[at] ^= 1
        if believes(check, bytes(changed)):
            faults.append(f"{name}: verifies although octet {at} is changed")


def signature(name, key, message, octets):
    verified(name, lambda s: Ed25519PublicKey.from_public_bytes(key).verify(s, message), octets)


server, device = Ed25519PrivateKey.from_private_bytes(v["server_seed"]), Ed25519PrivateKey.from_private_bytes(v["device_seed"])
next_server = Ed25519PrivateKey.from_private_bytes(v["next_server_seed"])
next_device = Ed25519PrivateKey.from_private_bytes(v["next_device_seed"])
server_boot = X25519PrivateKey.from_private_bytes(v["server_boot_secret"])
device_boot = X25519PrivateKey.from_private_bytes(v["device_boot_secret"])
same("server_key", raw(server.public_key()))
same("device_key", raw(device.public_key()))
same("server_boot_key", raw(server_boot.public_key()))
same("device_boot_key", raw(device_boot.public_key()))

# Which device key the appliance has.
same("expected", hashlib.sha256(framed(b"kurrent/expected/v1", v["nonce"], v["mac"], v["device_key"])).digest()[:16])

# Challenge and answer.
challenge = framed(b"kurrent/challenge/v2", v["nonce"], v["mac"], v["server_boot_key"], v["flags"], v["expected"])
same("challenge_signature", server.sign(challenge))
signature("challenge", v["server_key"], challenge, v["challenge_signature"])
answer = framed(
    b"kurrent/answer/v2",
    v["nonce"],
    v["mac"],
    v["uuid"],
    v["server_key"],
    v["device_boot_key"],
    v["server_boot_key"],
    v["flags"],
    v["expected"],
)
same("answer_signature", device.sign(answer))
signature("answer", v["device_key"], answer, v["answer_signature"])

# A new server key: the key, then the old key's signature.
new_server_key = raw(next_server.public_key())
rotation = framed(b"kurrent/server-rotation/v1", v["server_key"], new_server_key)
same("link", new_server_key + server.sign(rotation))
signature("rotation", v["server_key"], framed(b"kurrent/server-rotation/v1", v["server_key"], v["link"][:32]), v["link"][32:])

# A new device key: the key, then the signatures of the old and of the new key over the same octets.
new_device_key = raw(next_device.public_key())
rekey = framed(b"kurrent/rekey/v1", v["nonce"], v["mac"], v["server_key"], v["device_key"], new_device_key)
same("rekey", new_device_key + device.sign(rekey) + next_device.sign(rekey))
rekey = framed(b"kurrent/rekey/v1", v["nonce"], v["mac"], v["server_key"], v["device_key"], v["rekey"][:32])
signature("rekey by the old key", v["device_key"], rekey, v["rekey"][32:96])
signature("rekey by the new key", v["rekey"][:32], rekey, v["rekey"][96:])

# The session, from either side, masked as it is handed on, and what is sealed with it.
info = framed(b"kurrent/session/v1", v["mac"], v["device_boot_key"], v["server_boot_key"])
keys = []
for secret, public in ((device_boot, v["server_boot_key"]), (server_boot, v["device_boot_key"])):
    shared = secret.exchange(X25519PublicKey.from_public_bytes(public))
    keys.append(HKDF(algorithm=hashes.SHA256(), length=32, salt=v["nonce"], info=info).derive(shared))
if keys[0] != keys[1]:
    faults.append("the two sides do not share a session")
key = keys[0]
same("session", key + v["nonce"] + v["mac"])
same("session_masked", bytes(a ^ b for a, b in zip(key, v["mask"])) + v["nonce"] + v["mac"])
aad = framed(b"kurrent/sealed/v1", v["mac"], v["nonce"])
same("sealed", b"KSEALED1" + ChaCha20Poly1305(key).encrypt(bytes(12), v["plaintext"], aad))
unmasked = bytes(a ^ b for a, b in zip(v["session_masked"][:32], v["mask"]))


def opens_to(plaintext):
    def opens(blob):
        if blob[:8] != b"KSEALED1" or ChaCha20Poly1305(unmasked).decrypt(bytes(12), blob[8:], aad) != plaintext:
            raise InvalidTag

    return opens


verified("sealed", opens_to(v["plaintext"]), v["sealed"])

# What is sealed for iSCSI: four lines in this order.
login = b"".join(name.encode() + b"=" + v["chap_" + name] + b"\n" for name in ("user", "secret", "mutual_user", "mutual_secret"))
same("chap_sealed", b"KSEALED1" + ChaCha20Poly1305(key).encrypt(bytes(12), login, aad))
verified("chap_sealed", opens_to(login), v["chap_sealed"])


# The proof of a report.
def proof():
    mac = hmac.HMAC(v["report_key"], hashes.SHA256())
    mac.update(framed(b"kurrent/stage1-report/v1") + v["report"])
    return mac


same("report_proof", proof().finalize())
verified("report_proof", lambda octets: proof().verify(octets), v["report_proof"])

if faults:
    sys.exit("\n".join(faults))
print(f"{len(v)} values agree")
