//! How the texts that have a form look in the API's description: `kurrent_core::id` has the same rules as code. Core does not
//! know of OpenAPI, so each checked type has its description here.

use std::borrow::Cow;
use utoipa::openapi::schema::{ObjectBuilder, Schema, Type};
use utoipa::openapi::{KnownFormat, RefOr, SchemaFormat};
use utoipa::{PartialSchema, ToSchema};

macro_rules! text {
    ($($(#[$doc:meta])* $name:ident: $what:literal, $pattern:expr, $shortest:literal..=$longest:literal;)*) => {$(
        $(#[$doc])*
        pub(super) struct $name;

        impl PartialSchema for $name {
            fn schema() -> RefOr<Schema> {
                let text = ObjectBuilder::new().schema_type(Type::String).description(Some($what)).pattern(Some($pattern));
                text.min_length(Some($shortest)).max_length(Some($longest)).into()
            }
        }

        impl ToSchema for $name {
            fn name() -> Cow<'static, str> {
                Cow::Borrowed(stringify!($name))
            }
        }
    )*

        /// All of them, by name: what only a query has, no body brings into the description.
        pub(super) fn all() -> Vec<(&'static str, RefOr<Schema>)> {
            vec![$((stringify!($name), $name::schema())),*]
        }
    };
}

const MAC: &str = "^([0-9A-Fa-f][02468ACEace]([0-9A-Fa-f]{2}){5}|[0-9A-Fa-f][02468ACEace](:[0-9A-Fa-f]{2}){5}\
    |[0-9A-Fa-f][02468ACEace](-[0-9A-Fa-f]{2}){5}|[0-9A-Fa-f][02468ACEace][0-9A-Fa-f]{2}(\\.[0-9A-Fa-f]{4}){2})$";
/// No control character of any kind.
const PRINTABLE: &str = "^[^\\u0000-\\u001f\\u007f-\\u009f]*$";
const LABEL: &str = "^[a-z0-9]([a-z0-9-]*[a-z0-9])?$";

text! {
    /// [`kurrent_core::id::MacAddr`]
    MacAddress: "A device's MAC address, unicast and not zero; answers have lower case and colons.", MAC, 12..=17;
    /// [`kurrent_core::id::WorkerId`]
    WorkerName: "A Worker's identity and hostname: one DNS label.", LABEL, 1..=63;
    /// [`kurrent_core::id::UserName`]
    UserName: "A user's name.", "^[a-z][a-z0-9._-]*$", 1..=32;
    /// [`kurrent_core::id::AgentName`]
    NodeName: "A storage node's name: one DNS label; this appliance is 'local'.", LABEL, 1..=63;
    /// [`kurrent_core::id::OsName`]
    SystemName: "An operating system's name, for display and selection.", "^[a-z0-9._-]+$", 1..=32;
    /// [`kurrent_core::id::OsVersion`]
    SystemVersion: "An operating system's version; may be empty.", "^[a-z0-9._-]*$", 0..=32;
    /// [`kurrent_core::id::OsTag`]
    DiskTag: "Identifies one disk for ever.", "^[0-9a-f]{12}$", 12..=12;
    /// [`kurrent_core::id::FileName`]
    DiskFile: "A file in the disk folder.", "^[A-Za-z0-9_-][A-Za-z0-9._-]*$", 1..=200;
    /// [`kurrent_core::id::Nqn`]
    QualifiedName: "An NVMe Qualified Name.", "^nqn\\.[a-z0-9.:_-]+$", 13..=223;
    /// [`kurrent_core::ledger::schema::key_octets`]
    PublicKey: "A device's public key: ed25519: and 64 lower-case hex digits, or p256: and 130.",
        "^(ed25519:[0-9a-f]{64}|p256:04[0-9a-f]{128})$", 72..=135;
    /// SHA-256 in hex.
    Sha256: "SHA-256 in hex.", "^[0-9A-Fa-f]{64}$", 64..=64;
    /// A job, a boot, a join token.
    Name: "A name that the appliance made.", "^[!-~]+$", 1..=64;
    /// Free text: lines and tabs, no other control characters.
    Note: "Free text.", "^[^\\u0000-\\u0008\\u000b-\\u001f\\u007f-\\u009f]*$", 0..=1024;
    /// An IPv4 address.
    Address: "An IPv4 address.", "^[0-9]{1,3}(\\.[0-9]{1,3}){3}$", 7..=15;
    /// A network.
    Network: "An IPv4 network with its prefix length, like 10.77.0.0/24.", "^[0-9]{1,3}(\\.[0-9]{1,3}){3}/[0-9]{1,2}$", 9..=18;
    /// An opaque cursor.
    Cursor: "What the previous answer has as 'next'.", "^[A-Za-z0-9_-]*$", 0..=400;
}

/// A time.
pub(super) struct Time;

impl PartialSchema for Time {
    fn schema() -> RefOr<Schema> {
        let text = ObjectBuilder::new().schema_type(Type::String).format(Some(SchemaFormat::KnownFormat(KnownFormat::DateTime)));
        text.description(Some("RFC 3339, UTC.")).into()
    }
}

impl ToSchema for Time {
    fn name() -> Cow<'static, str> {
        Cow::Borrowed("Time")
    }
}

/// A device's labels.
pub(super) struct Labelling;

impl PartialSchema for Labelling {
    fn schema() -> RefOr<Schema> {
        let key = ObjectBuilder::new().schema_type(Type::String).pattern(Some("^[A-Za-z0-9._/-]{1,63}$"));
        let value = ObjectBuilder::new().schema_type(Type::String).max_length(Some(253)).pattern(Some(PRINTABLE));
        let map = ObjectBuilder::new().schema_type(Type::Object).property_names(Some(key)).additional_properties(Some(Schema::from(value)));
        map.max_properties(Some(64)).description(Some("Labels: what people sort by.")).into()
    }
}

impl ToSchema for Labelling {
    fn name() -> Cow<'static, str> {
        Cow::Borrowed("Labels")
    }
}
