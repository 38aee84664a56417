//! Whether an appliance is to be answered, and the answer.
//!
//! The pinned key decides. A machine that has pinned nothing pins the first appliance whose *signed* challenge says that
//! it may (trust on first use); afterwards only that one is answered, or who has its place by its own signature.

use crate::Refusal;
use crate::arguments::Request;
use ed25519_dalek::SigningKey;
use kurrent_handshake::{Answer, FLAG_MAY_PIN, Session, Side, boot_public_key, follow, same};

/// What an accepted challenge asks the firmware to store before it is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pin {
    /// This appliance is the pinned one.
    Known,
    /// First contact: store its key.
    Store,
    /// The pinned appliance has a new key, which its old one has signed: store that in its place.
    Move,
}

/// Decides whether the challenge is the pinned appliance's own.
///
/// # Errors
/// [`Refusal::WrongServer`] for another appliance, also when it shows links that do not lead to it from the pinned key;
/// [`Refusal::Forged`] when the signature is not by the key named.
pub fn accept(request: &Request, pinned: Option<&[u8; 32]>) -> Result<Pin, Refusal> {
    let may_pin = request.challenge.flags & FLAG_MAY_PIN != 0;
    let pin = match pinned {
        Some(key) if same(key, &request.server_key) => Pin::Known,
        Some(key) if follow(key, &request.links).is_ok_and(|key| same(&key, &request.server_key)) => Pin::Move,
        None if may_pin => Pin::Store,
        Some(_) | None => return Err(Refusal::WrongServer),
    };
    request.challenge.verify(&request.server_key, &request.signature).map_err(|_| Refusal::Forged)?;
    Ok(pin)
}

/// What is left for iPXE and stage-1.
pub struct Reply {
    /// Over the whole answer, by the device key.
    pub signature: [u8; 64],
    /// This boot's X25519 public key.
    pub boot_key: [u8; 32],
    /// For stage-1 only.
    pub session: Session,
}

/// Answers an accepted challenge. `boot_secret` is fresh for this boot.
///
/// # Errors
/// [`Refusal::Forged`] when the appliance's boot key is of low order: no honest appliance makes one.
pub fn answer(request: &Request, device: &SigningKey, boot_secret: &[u8; 32]) -> Result<Reply, Refusal> {
    let answer = Answer {
        challenge: request.challenge,
        uuid: request.uuid,
        server_key: request.server_key,
        device_boot_key: boot_public_key(boot_secret),
    };
    let session = answer.session(boot_secret, Side::Device).map_err(|_| Refusal::Forged)?;
    Ok(Reply { signature: answer.sign(device), boot_key: answer.device_boot_key, session })
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use alloc::vec::Vec;
    use kurrent_handshake::{Challenge, EXPECTS_NONE, Link, Rotation};

    fn request(server: &SigningKey, flags: u8) -> Request {
        let (mac, server_boot_key) = ([2, 0, 0, 0, 0, 1], boot_public_key(&[4; 32]));
        let challenge = Challenge { nonce: [3; 32], mac, server_boot_key, flags, expected: EXPECTS_NONE };
        let server_key = server.verifying_key().to_bytes();
        Request { challenge, uuid: [5; 16], server_key, signature: challenge.sign(server), links: Vec::new() }
    }

    #[test]
    fn only_the_pinned_appliance_or_a_first_one_that_may_is_answered() {
        let (ours, other) = (SigningKey::from_bytes(&[1; 32]), SigningKey::from_bytes(&[9; 32]));
        let pinned = ours.verifying_key().to_bytes();
        for (by, flags, pin, expected) in [
            (&ours, 0, Some(&pinned), Ok(Pin::Known)),
            (&ours, FLAG_MAY_PIN, Some(&pinned), Ok(Pin::Known)),
            (&ours, FLAG_MAY_PIN, None, Ok(Pin::Store)),
            (&ours, 0, None, Err(Refusal::WrongServer)),
            (&other, 0, Some(&pinned), Err(Refusal::WrongServer)),
            (&other, FLAG_MAY_PIN, Some(&pinned), Err(Refusal::WrongServer)),
        ] {
            assert_eq!(accept(&request(by, flags), pin), expected, "flags {flags}, pinned {}", pin.is_some());
        }
    }

    #[test]
    fn an_appliance_with_a_new_key_is_followed_from_the_pinned_one_and_nobody_else_is() {
        let keys = [1, 2, 3, 9].map(|n| SigningKey::from_bytes(&[n; 32]));
        let public = keys.each_ref().map(|key| key.verifying_key().to_bytes());
        let link = |old: usize, new: usize| {
            let rotation = Rotation { old: public[old], new: public[new] };
            Link { new: public[new], signature: rotation.sign(&keys[old]) }
        };
        let mine = Link { new: public[3], signature: Rotation { old: public[0], new: public[3] }.sign(&keys[3]) };
        for (by, links, pin, expected) in [
            (2, vec![link(0, 1), link(1, 2)], Some(0), Ok(Pin::Move)),
            (2, vec![link(1, 2)], Some(1), Ok(Pin::Move)),
            (2, vec![link(0, 1), link(1, 2)], Some(2), Ok(Pin::Known)),
            (2, vec![link(1, 2)], Some(0), Err(Refusal::WrongServer)),
            (2, vec![link(0, 1), link(1, 2)], Some(1), Err(Refusal::WrongServer)),
            (2, vec![], Some(0), Err(Refusal::WrongServer)),
            // Links that are right, and end at another appliance.
            (3, vec![link(0, 1), link(1, 2)], Some(0), Err(Refusal::WrongServer)),
            // The impostor's own link.
            (3, vec![mine], Some(0), Err(Refusal::WrongServer)),
            // The appliance's former key, which somebody else may have by now.
            (0, vec![link(0, 1)], Some(1), Err(Refusal::WrongServer)),
            (2, vec![link(0, 1), link(1, 2)], None, Err(Refusal::WrongServer)),
        ] {
            let request = Request { links, ..request(&keys[by], 0) };
            assert_eq!(accept(&request, pin.map(|at: usize| &public[at])), expected, "by {by}, pinned {pin:?}");
        }
        let forged = Request { links: vec![link(0, 1)], server_key: public[1], ..request(&keys[3], 0) };
        assert_eq!(accept(&forged, Some(&public[0])), Err(Refusal::Forged), "the link is no proof that it has the key");
    }

    #[test]
    fn nothing_is_pinned_or_answered_on_a_signature_that_is_not_the_servers() {
        let (ours, other) = (SigningKey::from_bytes(&[1; 32]), SigningKey::from_bytes(&[9; 32]));
        let mut forged = request(&other, FLAG_MAY_PIN);
        forged.server_key = ours.verifying_key().to_bytes();
        assert_eq!(accept(&forged, None), Err(Refusal::Forged));
        assert_eq!(accept(&forged, Some(&forged.server_key)), Err(Refusal::Forged));
        let mut raised = request(&ours, 0);
        raised.challenge.flags = FLAG_MAY_PIN;
        assert_eq!(accept(&raised, None), Err(Refusal::Forged), "a network attacker can not switch pinning on");
    }

    #[test]
    fn the_answer_verifies_and_leads_to_the_appliances_session() {
        let (server, device) = (SigningKey::from_bytes(&[1; 32]), SigningKey::from_bytes(&[2; 32]));
        let request = request(&server, 0);
        let Ok(reply) = answer(&request, &device, &[6; 32]) else { panic!("refused") };
        let seen =
            Answer { challenge: request.challenge, uuid: request.uuid, server_key: request.server_key, device_boot_key: reply.boot_key };
        assert_eq!(seen.verify(&device.verifying_key().to_bytes(), &reply.signature), Ok(()));
        let Ok(ours) = seen.session(&[4; 32], Side::Appliance) else { panic!("low order") };
        assert!(reply.session.open(&ours.seal(b"x")).is_ok());
    }
}
