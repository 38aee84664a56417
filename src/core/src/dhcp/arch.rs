//! Client system architectures (option 93; IANA registry "Processor Architecture Types") and the one table of loaders.
//!
//! A client of an architecture without a loader is offered no boot file, and the log and `explain` say so: a loader of
//! another architecture would only be fetched and refused.

/// The loaders: Debian's own iPXE binaries under their own names, short and flat, so that every firmware can take them
/// (smee 225: Lenovo HR330A fails on a name with a folder). The image carries them, TFTP and HTTP serve them.
pub const LOADERS: [&str; 8] = [
    "snponly.efi",
    "ipxe-amd64.efi",
    "ipxe-arm64.efi",
    "undionly.kpxe",
    "undionly.kkpxe",
    "ipxe.pxe",
    "ipxe-riscv64.efi",
    "ipxe-loong64.efi",
];

/// Whether a file is one of [`LOADERS`].
#[must_use]
pub fn is_loader(name: &str) -> bool {
    LOADERS.contains(&name)
}

/// A number of the registry.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Arch(u16);

impl std::fmt::Debug for Arch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.0, self.name())
    }
}

/// How its firmware loads.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Tftp,
    Http,
}

struct Row {
    number: u16,
    name: &'static str,
    way: Way,
    loader: Option<&'static str>,
}

const fn row(number: u16, name: &'static str, way: Way, loader: Option<&'static str>) -> Row {
    Row { number, name, way, loader }
}

/// What the stock package has no loader for (32-bit x86, ARM and RISC-V UEFI, 32-bit LoongArch) is listed without.
const REGISTRY: [Row; 25] = [
    row(0, "x86 BIOS", Way::Tftp, Some("undionly.kpxe")),
    row(6, "x86 UEFI", Way::Tftp, None),
    row(7, "x64 UEFI", Way::Tftp, Some("snponly.efi")),
    // RFC 4578 has 7 and 9 the other way round (its erratum 4624): firmware in the field sends either for x64.
    row(9, "x64 UEFI", Way::Tftp, Some("snponly.efi")),
    row(10, "ARM 32-bit UEFI", Way::Tftp, None),
    row(11, "ARM 64-bit UEFI", Way::Tftp, Some("ipxe-arm64.efi")),
    row(15, "x86 UEFI HTTP", Way::Http, None),
    row(16, "x64 UEFI HTTP", Way::Http, Some("snponly.efi")),
    row(17, "x64 UEFI HTTP", Way::Http, Some("snponly.efi")),
    row(18, "ARM 32-bit UEFI HTTP", Way::Http, None),
    row(19, "ARM 64-bit UEFI HTTP", Way::Http, Some("ipxe-arm64.efi")),
    row(20, "x86 BIOS HTTP", Way::Http, Some("undionly.kpxe")),
    row(21, "ARM 32-bit U-Boot", Way::Tftp, None),
    // U-Boot starts UEFI programs.
    row(22, "ARM 64-bit U-Boot", Way::Tftp, Some("ipxe-arm64.efi")),
    row(23, "ARM 32-bit U-Boot HTTP", Way::Http, None),
    row(24, "ARM 64-bit U-Boot HTTP", Way::Http, Some("ipxe-arm64.efi")),
    row(25, "RISC-V 32-bit UEFI", Way::Tftp, None),
    row(26, "RISC-V 32-bit UEFI HTTP", Way::Http, None),
    row(27, "RISC-V 64-bit UEFI", Way::Tftp, Some("ipxe-riscv64.efi")),
    row(28, "RISC-V 64-bit UEFI HTTP", Way::Http, Some("ipxe-riscv64.efi")),
    row(37, "LoongArch 32-bit UEFI", Way::Tftp, None),
    row(38, "LoongArch 32-bit UEFI HTTP", Way::Http, None),
    row(39, "LoongArch 64-bit UEFI", Way::Tftp, Some("ipxe-loong64.efi")),
    row(40, "LoongArch 64-bit UEFI HTTP", Way::Http, Some("ipxe-loong64.efi")),
    row(41, "ARM rpiboot", Way::Tftp, None),
];

impl From<u16> for Arch {
    fn from(number: u16) -> Self {
        Self(number)
    }
}

impl Arch {
    /// x86 with a BIOS; also what the ROM of a Raspberry Pi says.
    pub const BIOS: Self = Self(0);
    /// x64 UEFI.
    pub const X64: Self = Self(7);
    /// Raspberry Pi's own boot program.
    pub const RPIBOOT: Self = Self(41);

    fn row(self) -> Option<&'static Row> {
        REGISTRY.iter().find(|row| row.number == self.0)
    }

    /// The registry's number.
    #[must_use]
    pub fn number(self) -> u16 {
        self.0
    }

    /// In words.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.row().map_or("unknown architecture", |row| row.name)
    }

    /// Whether its firmware loads over HTTP.
    #[must_use]
    pub fn is_http(self) -> bool {
        self.row().is_some_and(|row| row.way == Way::Http)
    }

    /// What it is given to boot; `None`: there is no loader for it.
    #[must_use]
    pub fn loader(self) -> Option<&'static str> {
        self.row()?.loader
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smee_225_loader_names_are_short_flat_and_of_the_table() {
        for name in LOADERS {
            assert!(name.len() <= 20 && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-.".contains(&b)), "{name}");
        }
        assert!(REGISTRY.iter().all(|row| row.loader.is_none_or(is_loader)));
        assert!(!is_loader("ipxe.efi") && !is_loader(""));
    }

    #[test]
    fn numbers_are_those_of_the_registry_and_stand_once() {
        assert!(REGISTRY.is_sorted_by_key(|row| row.number));
        let check = |number: u16, http: bool, loader: Option<&str>| {
            assert_eq!((Arch(number).is_http(), Arch(number).loader()), (http, loader), "{:?}", Arch(number));
        };
        check(0, false, Some("undionly.kpxe"));
        check(6, false, None);
        check(7, false, Some("snponly.efi"));
        check(9, false, Some("snponly.efi"));
        check(10, false, None);
        check(11, false, Some("ipxe-arm64.efi"));
        check(15, true, None);
        check(16, true, Some("snponly.efi"));
        check(18, true, None);
        check(19, true, Some("ipxe-arm64.efi"));
        check(20, true, Some("undionly.kpxe"));
        check(25, false, None);
        check(26, true, None);
        check(27, false, Some("ipxe-riscv64.efi"));
        check(28, true, Some("ipxe-riscv64.efi"));
        check(37, false, None);
        check(39, false, Some("ipxe-loong64.efi"));
        check(40, true, Some("ipxe-loong64.efi"));
        check(999, false, None);
    }
}
