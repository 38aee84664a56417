//! Real firmware and real loaders against `kurrentd` itself in a namespace, up to the boot script: the ways by which a machine
//! gets there. What comes after the script is the other tests' business, with the appliance; but for iSCSI, which has no appliance yet.

mod arm64;
mod bios;
mod impostor;
mod iscsi;
mod networks;
mod place;
mod seen;
mod six;
mod uefi;
