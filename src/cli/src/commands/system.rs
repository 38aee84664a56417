//! What concerns the appliance as a whole.

use crate::arguments::system::{Audit, Credentials, Enforcement, Lease, Settings, SettingsChanges, Window};
use crate::arguments::{Listing, Look, Sure};
use crate::confirm;
use crate::failure::Failure;
use crate::output::{Column, at, fields, print, table, text};
use crate::session::{Session, View, query};
use hyper::Method;
use serde_json::{Value, json};

const LEASES: View = View {
    key: "leases",
    columns: &[("ADDRESS", "address"), ("MAC", "mac"), ("SUBNET", "subnet"), ("STATE", "state"), ("UNTIL", "until")],
    none: "no leases",
};
const CREDENTIALS: View = View {
    key: "credentials",
    columns: &[
        ("WORKER", "worker_id"),
        ("DEVICE", "device"),
        ("EPOCH", "epoch"),
        ("CURRENT", "current"),
        ("HOST", "host_nqn"),
        ("BOOTED FROM", "addresses"),
    ],
    none: "no credentials; they are made when a device is bound",
};
const OPERATIONS: View = View {
    key: "operations",
    columns: &[
        ("AT", "at"),
        ("ACTOR", "actor"),
        ("VERB", "verb"),
        ("DEVICE", "device"),
        ("OBJECT", "object"),
        ("RESULT", "result"),
        ("DETAIL", "detail"),
        ("REPEATED", "repeated"),
    ],
    none: "nothing recorded",
};
const EXPORTS: &[Column] = &[("SUBSYSTEM", "subsystem"), ("HOST", "host"), ("FILE", "path")];
const SUBNETS: &[Column] = &[
    ("NETWORK", "network"),
    ("FIRST", "range_start"),
    ("LAST", "range_end"),
    ("ADDRESSES", "size"),
    ("IN USE", "in_use"),
    ("ENDED", "ended"),
    ("QUARANTINED", "quarantined"),
    ("UNUSED", "unused"),
];
const OTHER_SERVERS: &[Column] = &[
    ("OTHER SERVER", "server"),
    ("MAC", "mac"),
    ("HEARD", "heard"),
    ("ADDRESS", "address"),
    ("FIRST SEEN", "first_seen"),
    ("LAST SEEN", "last_seen"),
];
const CONFLICTS: &[Column] = &[("IN CONFLICT", "address"), ("USED BY", "mac"), ("GIVEN TO", "given_to"), ("LAST SEEN", "last_seen")];
const WAITING: &[Column] = &[("RESERVED", "address"), ("FOR", "mac"), ("HELD BY", "held_by"), ("UNTIL", "until")];
const COUNTERS: &[Column] = &[("COUNT", "count"), ("WHAT", "what")];
const SESSIONS: &[Column] = &[("ADDRESS", "address"), ("CONNECTIONS", "connections")];

/// `kurrent status`.
pub async fn status(session: &Session, look: Look) -> Result<(), Failure> {
    session.one("/v1/status".into(), look, fields).await
}

/// `kurrent state check`.
pub async fn state_check(session: &Session) -> Result<(), Failure> {
    let answer = session.client.get("/v1/state").await?;
    session.show(&answer, fields)?;
    if at(&answer, "holds").as_bool() == Some(false) { Err(Failure::local("the state folder has faults; see above")) } else { Ok(()) }
}

/// `kurrent target`.
pub async fn target(session: &Session, look: Look) -> Result<(), Failure> {
    let people = |answer: &Value| {
        let faults = answer.get("faults").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let faults: Vec<String> = faults.iter().map(|f| format!("fault: {}", text(f))).collect();
        let exports = table(answer, "exports", EXPORTS, "nothing is exported");
        let sessions = table(answer, "sessions", SESSIONS, "nobody is connected");
        [exports, sessions].into_iter().chain(faults).collect::<Vec<_>>().join("\n\n")
    };
    session.one("/v1/target".into(), look, people).await
}

/// `kurrent dhcp status`.
pub async fn dhcp_status(session: &Session, look: Look) -> Result<(), Failure> {
    let people = |answer: &Value| {
        let head = match (text(at(answer, "mode")).as_str(), at(answer, "serving").as_bool()) {
            ("server", Some(true)) => "DHCP server: gives addresses".to_owned(),
            ("server", _) => "DHCP server: at fault, gives no addresses; see `kurrent status`".to_owned(),
            ("proxy", _) => "DHCP proxy: another server gives the addresses".to_owned(),
            (mode, _) => format!("DHCP is {mode}"),
        };
        let subnets = table(answer, "subnets", SUBNETS, "no addresses are given out here");
        let others = table(answer, "other_servers", OTHER_SERVERS, "no other DHCP server was heard on the boot network");
        let head = match at(answer, "ipv6") {
            Value::Null => head,
            ipv6 => {
                let advertises = if at(ipv6, "router_advertisements").as_bool() == Some(true) { ", advertises its prefix" } else { "" };
                format!("{head}\nDHCPv6 {} at {}{advertises}", text(at(ipv6, "mode")), text(at(ipv6, "address")))
            }
        };
        let waiting = table(answer, "waiting", WAITING, "no reservation waits for another machine");
        let conflicts = table(answer, "conflicts", CONFLICTS, "nobody uses an address that is another's or nobody's");
        let counters = table(answer, "counters", COUNTERS, "nobody has asked yet");
        [head, subnets, waiting, others, conflicts, counters].join("\n\n")
    };
    session.one("/v1/dhcp".into(), look, people).await
}

/// `kurrent window`.
pub async fn window(session: &Session, command: Window) -> Result<(), Failure> {
    const PATH: &str = "/v1/settings/registration-window";
    let answer = match command {
        Window::Open { minutes } => {
            let order = minutes.map_or_else(|| json!({}), |minutes| json!({ "minutes": minutes }));
            session.client.change(Method::PUT, PATH, Some(order), None).await?
        }
        Window::Close => session.client.change(Method::DELETE, PATH, None, None).await?,
        Window::Show => session.client.get(PATH).await?,
    };
    session.show(&answer, |answer| match at(answer, "open") {
        Value::Bool(true) => format!("open until {}: machines with a key register themselves", text(at(answer, "until"))),
        _ => "closed: unknown machines are only listed as knocking".into(),
    })
}

/// `kurrent settings`.
pub async fn settings(session: &Session, command: Settings) -> Result<(), Failure> {
    match command {
        Settings::Show(look) => session.one("/v1/settings".into(), look, fields).await,
        Settings::Set { changes, sure } => set(session, changes, sure).await,
    }
}

async fn set(session: &Session, changes: SettingsChanges, sure: Sure) -> Result<(), Failure> {
    let mut order = serde_json::Map::new();
    let mut tag = None;
    if let Some(wanted) = changes.enforcement {
        if wanted == Enforcement::Off && confirm::needed(sure) {
            confirm::ask("Give disks to devices that prove no key? Anybody on the boot network can then claim to be any of them.")?;
        }
        let value = match wanted {
            Enforcement::On => true.into(),
            Enforcement::Off => false.into(),
            Enforcement::Config => Value::Null,
        };
        order.insert("enforcement".into(), value);
    }
    let given = super::worker::overrides(changes.boot);
    if changes.no_boot {
        order.insert("boot".into(), json!({}));
    } else if let Some(given) = given.as_object().filter(|g| !g.is_empty()) {
        // The API replaces the boot settings as a whole; the ETag keeps somebody else's change of the others.
        let now = session.client.get_tagged("/v1/settings").await?;
        let mut boot = at(&now.body, "boot").as_object().cloned().unwrap_or_default();
        boot.extend(given.clone());
        order.insert("boot".into(), boot.into());
        tag = now.etag;
    }
    if order.is_empty() {
        return Err(Failure::local("say what to change, for instance --enforcement on; kurrent settings set --help"));
    }
    session.show(&session.client.change(Method::PATCH, "/v1/settings", Some(order.into()), tag).await?, fields)
}

/// `kurrent lease`.
pub async fn lease(session: &Session, command: Lease) -> Result<(), Failure> {
    match command {
        Lease::List { subnet, listing } => session.list(query("/v1/leases", &[("subnet", subnet)]), LEASES, listing).await,
        Lease::Release { address, sure } => {
            if confirm::needed(sure) {
                confirm::ask(&format!("Take {address} back? A machine that still uses it may meet another one with the same address."))?;
            }
            let answer = session.client.change(Method::DELETE, &format!("/v1/leases/{address}"), None, None).await?;
            session.show(&answer, |answer| {
                format!("{address} is taken back from {}: {}", text(at(answer, "mac")), text(at(answer, "meaning")))
            })
        }
    }
}

/// `kurrent credentials`.
pub async fn credentials(session: &Session, command: Credentials) -> Result<(), Failure> {
    match command {
        Credentials::List(listing) => session.list("/v1/credentials".into(), CREDENTIALS, listing).await,
        Credentials::Rotate { worker, sure } => {
            let question =
                |_: &Value| format!("Make new credentials for {worker}? If its machine runs, it loses its disk and has to boot again.");
            let tag = session.ask(sure, &format!("/v1/workers/{worker}"), question).await?;
            let path = format!("/v1/workers/{worker}/credentials/rotate");
            session.show(&session.client.post_if(&path, json!({}), tag).await?, fields)
        }
    }
}

/// `kurrent audit`.
pub async fn audit(session: &Session, filter: Audit) -> Result<(), Failure> {
    let pairs = [
        ("device", filter.device.map(|d| d.to_string())),
        ("object", filter.object),
        ("verb", filter.verb),
        ("actor", filter.actor),
        ("result", filter.result),
        ("since", filter.since),
        ("until", filter.until),
    ];
    session.list(query("/v1/operations", &pairs), OPERATIONS, Listing { limit: Some(filter.limit), look: filter.look }).await
}

/// `kurrent ca`: the certificate as PEM.
pub async fn ca(session: &Session) -> Result<(), Failure> {
    let pem = session.client.get_text("/v1/ca").await?;
    let lines: Vec<String> = pem.lines().map(crate::output::clean).collect();
    session.show(&json!({ "ca": pem }), |_| lines.join("\n"))
}

/// `kurrent api openapi`: the document as it is, in every form but YAML.
pub async fn openapi(session: &Session) -> Result<(), Failure> {
    let document = session.client.get("/v1/openapi.json").await?;
    match session.form {
        crate::arguments::Form::Yaml => session.show(&document, fields),
        crate::arguments::Form::Table | crate::arguments::Form::Json => {
            print(&crate::output::rendered(crate::arguments::Form::Json, &document, fields)?)
        }
    }
}
