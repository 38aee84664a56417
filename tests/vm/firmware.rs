//! Real firmware and real loaders against `kurrentd` itself in a namespace, up to the boot script: the ways by which a machine
//! gets there. What comes after the script is the other tests' business, with the appliance.

mod arm64;
mod bios;
mod impostor;
mod networks;
mod place;
mod seen;
mod six;
mod uefi;
