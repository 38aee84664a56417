//! Entropy from the kernel (`getrandom(2)`).

/// `N` random octets.
///
/// # Panics
/// Only when the kernel has no `getrandom` at all, which no supported kernel lacks: better no service than weak keys.
#[must_use]
pub fn random<const N: usize>() -> [u8; N] {
    let mut octets = [0; N];
    getrandom::fill(&mut octets).expect("the kernel gives entropy");
    octets
}
