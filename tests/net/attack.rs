//! Attacks from the boot network and on the API, against a real `kurrentd`; `make attack` shows each with how it was refused and
//! where the operator finds it. `tests/vm/attack` has those that need whole machines.

mod api;
mod boot;
pub mod device;
mod dhcp;

use crate::net::wait_for;
use anyhow::Result;
use kurrent_harness::api::Api;
use kurrent_harness::attack;
use serde_json::Value;

/// Waits until the audit has `result` for one of `verbs` (none: any), and notes the attack.
fn refused(api: &Api, name: &str, said: &str, verbs: &[&str], result: &str) -> Result<()> {
    let mut found = String::new();
    wait_for(&format!("{result} in the audit"), || {
        let page = api.get(&format!("/v1/operations?result={result}&limit=50")).unwrap_or_default();
        let operations = page.get("operations").and_then(Value::as_array).cloned().unwrap_or_default();
        let text = |operation: &Value, key: &str| operation.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        let line = operations.iter().find(|operation| verbs.is_empty() || verbs.contains(&text(operation, "verb").as_str()));
        found = line.map(|line| format!("{} by {}: {result}", text(line, "verb"), text(line, "actor"))).unwrap_or_default();
        !found.is_empty()
    })?;
    attack::note(name, said, &format!("audit: {found}"))
}
