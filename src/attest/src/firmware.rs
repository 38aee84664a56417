//! The firmware calls: variables, random numbers, load options, the SMBIOS table. No decisions.

use alloc::string::String;
use alloc::vec::Vec;
use kurrent_attest::Refusal;
use kurrent_attest::machine::{Kind, Machine};
use kurrent_attest::smbios::{self, Memory};
use kurrent_attest::stored::{self, Found, Got};
use kurrent_handshake::VARIABLE_GUID;
use uefi::boot::{self, OpenProtocolAttributes, OpenProtocolParams};
use uefi::proto::loaded_image::LoadedImage;
use uefi::proto::rng::Rng;
use uefi::runtime::{self, VariableAttributes, VariableKey, VariableVendor};
use uefi::table::cfg;
use uefi::{CStr16, CString16, Guid, Status, println};
use zeroize::Zeroizing;

const VENDOR: VariableVendor = VariableVendor(Guid::parse_or_panic(VARIABLE_GUID));

/// A store holds a few hundred variables; firmware whose enumeration runs in circles must not hold us.
const MAX_VARIABLES: usize = 4096;

fn attributes(kind: Kind) -> VariableAttributes {
    match kind {
        Kind::Protected => VariableAttributes::NON_VOLATILE | VariableAttributes::BOOTSERVICE_ACCESS,
        Kind::Volatile => VariableAttributes::BOOTSERVICE_ACCESS,
        Kind::Handed => VariableAttributes::BOOTSERVICE_ACCESS | VariableAttributes::RUNTIME_ACCESS,
        Kind::Taken => VariableAttributes::NON_VOLATILE | VariableAttributes::BOOTSERVICE_ACCESS | VariableAttributes::RUNTIME_ACCESS,
    }
}

fn name16(name: &str) -> Result<CString16, Refusal> {
    CString16::try_from(name).map_err(|_| Refusal::Firmware)
}

/// The machine that this program runs on.
pub struct Firmware;

impl Machine for Firmware {
    fn read<const N: usize>(&mut self, name: &str, kind: Kind) -> Result<Option<Zeroizing<[u8; N]>>, Refusal> {
        let name = name16(name)?;
        let found = stored::find(|buffer| match runtime::get_variable(&name, &VENDOR, buffer) {
            Ok((value, found)) => Got::Value { length: value.len(), ours: found == attributes(kind) },
            Err(error) if error.status() == Status::NOT_FOUND => Got::Absent,
            Err(error) if error.status() == Status::BUFFER_TOO_SMALL => error.data().map_or(Got::Failed, Got::Needs),
            Err(_) => Got::Failed,
        })?;
        match found {
            Found::Absent => Ok(None),
            Found::Value(octets) => Ok(Some(octets)),
            Found::Planted => {
                remove16(&name)?;
                Ok(None)
            }
        }
    }

    fn write(&mut self, name: &str, kind: Kind, octets: &[u8]) -> Result<(), Refusal> {
        let name = name16(name)?;
        match kind {
            Kind::Protected => {
                if runtime::variable_exists(&name, &VENDOR).map_err(|_| Refusal::Firmware)? {
                    return Err(Refusal::Firmware);
                }
            }
            // Attributes of an existing variable can not be changed: it goes first.
            Kind::Volatile | Kind::Handed | Kind::Taken => remove16(&name)?,
        }
        runtime::set_variable(&name, &VENDOR, attributes(kind), octets).map_err(|_| Refusal::Firmware)
    }

    fn replace(&mut self, name: &str, octets: &[u8; 32]) -> Result<(), Refusal> {
        // The same attributes: the firmware writes the new value beside the old one and then switches (EDK2's variable driver).
        runtime::set_variable(&name16(name)?, &VENDOR, attributes(Kind::Protected), octets).map_err(|_| Refusal::Firmware)
    }

    fn remove(&mut self, name: &str) -> Result<(), Refusal> {
        remove16(&name16(name)?)
    }

    fn remove_lookalikes(&mut self, names: &[&str]) -> Result<(), Refusal> {
        let is_lookalike = |key: &VariableKey| {
            let name = String::from(&*key.name);
            key.vendor != VENDOR && names.iter().any(|ours| ours.eq_ignore_ascii_case(&name))
        };
        // Collected first: removing while enumerating confuses some firmware. A name that can not be read is not one of ours.
        let keys = runtime::variable_keys().take(MAX_VARIABLES).filter_map(Result::ok);
        for key in keys.filter(is_lookalike).collect::<Vec<_>>() {
            runtime::delete_variable(&key.name, &key.vendor).map_err(|_| Refusal::Firmware)?;
        }
        Ok(())
    }

    /// From the firmware, else from the CPU.
    fn random(&mut self) -> Result<Zeroizing<[u8; 32]>, Refusal> {
        let mut octets = Zeroizing::new([0u8; 32]);
        if from_firmware(octets.as_mut_slice()) || from_cpu(octets.as_mut_slice()) {
            return Ok(octets);
        }
        Err(Refusal::NoEntropy)
    }

    fn memory(&mut self) -> Option<Memory> {
        memory()
    }

    fn say(&mut self, line: &str) {
        println!("Kurrent: {line}");
    }
}

fn remove16(name: &CStr16) -> Result<(), Refusal> {
    match runtime::delete_variable(name, &VENDOR) {
        Ok(()) => Ok(()),
        Err(error) if error.status() == Status::NOT_FOUND => Ok(()),
        Err(_) => Err(Refusal::Firmware),
    }
}

/// A generator that fails can leave its buffer as it was, or fill it with one value.
fn looks_random(octets: &[u8]) -> bool {
    octets.first().is_some_and(|first| octets.iter().any(|octet| octet != first))
}

fn from_firmware(octets: &mut [u8]) -> bool {
    let Ok(handles) = boot::find_handles::<Rng>() else { return false };
    for handle in handles {
        let params = OpenProtocolParams { handle, agent: boot::image_handle(), controller: None };
        // SAFETY: the protocol is only used until the end of this turn, and no handle is disconnected meanwhile. Opening
        // it exclusively would stop the driver that others (iPXE's TLS) still use.
        let opened = unsafe { boot::open_protocol::<Rng>(params, OpenProtocolAttributes::GetProtocol) };
        if let Ok(mut rng) = opened
            && rng.get_rng(None, octets).is_ok()
            && looks_random(octets)
        {
            return true;
        }
    }
    false
}

#[cfg(target_arch = "x86_64")]
fn from_cpu(octets: &mut [u8]) -> bool {
    use core::arch::x86_64::{__cpuid, _rdrand64_step};

    const CPUID_FEATURES: u32 = 1;
    const ECX_RDRAND: u32 = 1 << 30;
    // Intel's manual, volume 1, 7.3.17.1: ten tries, then it is broken.
    const TRIES: usize = 10;

    #[target_feature(enable = "rdrand")]
    fn draw() -> Option<u64> {
        let mut value = 0;
        (0..TRIES).any(|_| _rdrand64_step(&mut value) == 1).then_some(value)
    }

    if __cpuid(CPUID_FEATURES).ecx & ECX_RDRAND == 0 {
        return false;
    }
    for part in octets.chunks_mut(size_of::<u64>()) {
        // SAFETY: CPUID says that the instruction is there.
        let Some(value) = (unsafe { draw() }) else { return false };
        // Some AMD firmware leaves RDRAND answering all ones after a resume (Linux commit 7879fc4bdc75).
        if value == 0 || value == u64::MAX {
            return false;
        }
        let value = Zeroizing::new(value.to_le_bytes());
        part.iter_mut().zip(value.iter()).for_each(|(to, from)| *to = *from);
    }
    looks_random(octets)
}

#[cfg(target_arch = "aarch64")]
fn from_cpu(octets: &mut [u8]) -> bool {
    use core::arch::asm;

    // Arm's manual (DDI 0487), D24.2.131 ID_AA64ISAR0_EL1: field RNDR, bits 63 to 60.
    const RNDR_SHIFT: u32 = 60;
    // RNDR gives nothing when its source is exhausted: as for RDRAND above.
    const TRIES: usize = 10;

    let features: u64;
    // SAFETY: firmware runs at EL1 or above, where the register is readable; reading it changes nothing.
    unsafe { asm!("mrs {}, ID_AA64ISAR0_EL1", out(reg) features, options(nomem, nostack, preserves_flags)) };
    if features >> RNDR_SHIFT == 0 {
        return false;
    }
    let draw = || {
        let (value, good): (u64, u64);
        // SAFETY: the feature register says that RNDR (S3_3_C2_C4_0) is there; it clears Z when it gave a number.
        unsafe { asm!("mrs {}, S3_3_C2_C4_0", "cset {}, ne", out(reg) value, out(reg) good, options(nomem, nostack)) };
        (good == 1).then_some(value)
    };
    for part in octets.chunks_mut(size_of::<u64>()) {
        let Some(value) = (0..TRIES).find_map(|_| draw()) else { return false };
        let value = Zeroizing::new(value.to_le_bytes());
        part.iter_mut().zip(value.iter()).for_each(|(to, from)| *to = *from);
    }
    looks_random(octets)
}

/// The load options as ASCII; `None` when there are none or they are something else.
pub fn load_options() -> Option<String> {
    let image = boot::open_protocol_exclusive::<LoadedImage>(boot::image_handle()).ok()?;
    let units = image.load_options_as_bytes()?.chunks_exact(2).map(|unit| u16::from_le_bytes([unit[0], unit[1]]));
    let text = units.take_while(|unit| *unit != 0).map(|unit| u8::try_from(unit).ok().filter(u8::is_ascii).map(char::from));
    text.collect()
}

/// The first memory module, from whichever SMBIOS table the firmware has.
fn memory() -> Option<Memory> {
    let (entry, length) = uefi::system::with_config_table(|table| {
        let of = |guid| table.iter().find(|entry| entry.guid == guid).map(|entry| entry.address);
        let by_64 = of(cfg::SMBIOS3_GUID).map(|address| (address, smbios::ENTRY_POINT_64_BYTES));
        by_64.or_else(|| Some((of(cfg::SMBIOS_GUID)?, smbios::ENTRY_POINT_32_BYTES)))
    })?;
    if entry.is_null() {
        return None;
    }
    // SAFETY: the firmware says that an entry point of this form lies here, in memory that is mapped one to one while
    // boot services run; nothing writes it while this program runs.
    let octets = unsafe { core::slice::from_raw_parts(entry.cast::<u8>(), length) };
    let table = smbios::entry_point(octets)?;
    let address = usize::try_from(table.address).ok()?;
    // SAFETY: as above; the entry point's own address and length are kept.
    let structures = unsafe { core::slice::from_raw_parts(core::ptr::with_exposed_provenance(address), table.length) };
    smbios::memory(structures)
}
