//! Any octets of a connection to the boot plane: no panic; a head lies inside them; more octets behind it change nothing of it.
#![no_main]

use kurrent_core::http::head::{MAX_HEAD_BYTES, Read, read};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|octets: &[u8]| {
    match read(octets) {
        Read::Whole(head, taken) => {
            assert!(taken <= octets.len() && taken <= MAX_HEAD_BYTES);
            assert!(head.path.len() + head.query.len() <= taken);
            let longer = [&octets[..taken], b"GET / HTTP/1.1\r\n\r\n"].concat();
            assert_eq!(read(&longer), Read::Whole(head, taken), "what follows a head is another request");
        }
        Read::More => assert!(octets.len() < MAX_HEAD_BYTES),
        Read::Refused(_) => {}
    }
});
