//! The one table. A row: method, path as the API's description has it, tag, the least role.
//!
//! What reads no secret is for viewers; what runs machines for operators; what decides about people, keys, other nodes or the whole
//! appliance for admins.

use super::{Least, Role, Route};

const NOBODY: Least = Least::Nobody;
const VIEWER: Least = Least::Role(Role::Viewer);
const OPERATOR: Least = Least::Role(Role::Operator);
const ADMIN: Least = Least::Role(Role::Admin);

const fn row(method: &'static str, path: &'static str, tag: &'static str, least: Least) -> Route {
    Route { method, path, tag, least, first_run: false }
}

/// A row that the first-run token opens, too.
const fn first_run(method: &'static str, path: &'static str, tag: &'static str, least: Least) -> Route {
    Route { method, path, tag, least, first_run: true }
}

/// Every route of the API, by tag.
pub const ROUTES: &[Route] = &[
    row("GET", "/v1/agents", "agents", VIEWER),
    row("POST", "/v1/agents", "agents", ADMIN),
    row("GET", "/v1/agents/{name}", "agents", VIEWER),
    row("PATCH", "/v1/agents/{name}", "agents", ADMIN),
    row("DELETE", "/v1/agents/{name}", "agents", ADMIN),
    row("POST", "/v1/agents/{name}/drain", "agents", ADMIN),
    row("POST", "/v1/agents/{name}/probe", "agents", ADMIN),
    row("POST", "/v1/agents/{name}/undrain", "agents", ADMIN),
    row("GET", "/v1/join-tokens", "agents", VIEWER),
    row("POST", "/v1/join-tokens", "agents", ADMIN),
    row("DELETE", "/v1/join-tokens/{id}", "agents", ADMIN),
    row("POST", "/v1/backup", "backup", ADMIN),
    row("POST", "/v1/restore", "backup", ADMIN),
    row("PUT", "/v1/restore/archive", "backup", ADMIN),
    row("GET", "/v1/credentials", "credentials", VIEWER),
    row("POST", "/v1/workers/{id}/credentials/rotate", "credentials", ADMIN),
    row("GET", "/v1/devices", "devices", VIEWER),
    row("POST", "/v1/devices", "devices", OPERATOR),
    row("POST", "/v1/devices/bind", "devices", OPERATOR),
    row("POST", "/v1/devices/import", "devices", OPERATOR),
    row("GET", "/v1/devices/{mac}", "devices", VIEWER),
    row("PATCH", "/v1/devices/{mac}", "devices", OPERATOR),
    row("DELETE", "/v1/devices/{mac}", "devices", OPERATOR),
    row("POST", "/v1/devices/{mac}/admit", "devices", OPERATOR),
    row("POST", "/v1/devices/{mac}/bind", "devices", OPERATOR),
    row("GET", "/v1/devices/{mac}/explain", "devices", VIEWER),
    row("PUT", "/v1/devices/{mac}/labels", "devices", OPERATOR),
    row("POST", "/v1/devices/{mac}/rekey", "devices", OPERATOR),
    row("POST", "/v1/devices/{mac}/revoke", "devices", OPERATOR),
    row("GET", "/v1/devices/{mac}/timeline", "devices", VIEWER),
    row("POST", "/v1/devices/{mac}/unbind", "devices", OPERATOR),
    row("GET", "/v1/knocking", "devices", VIEWER),
    row("GET", "/v1/disks", "disks", VIEWER),
    row("POST", "/v1/disks/batch", "disks", OPERATOR),
    row("GET", "/v1/leftovers", "disks", VIEWER),
    row("DELETE", "/v1/leftovers/{name}", "disks", OPERATOR),
    row("GET", "/v1/workers/{id}/disks", "disks", VIEWER),
    row("POST", "/v1/workers/{id}/disks", "disks", OPERATOR),
    row("POST", "/v1/workers/{id}/disks/adopt", "disks", OPERATOR),
    row("GET", "/v1/workers/{id}/disks/{tag}", "disks", VIEWER),
    row("PATCH", "/v1/workers/{id}/disks/{tag}", "disks", OPERATOR),
    row("DELETE", "/v1/workers/{id}/disks/{tag}", "disks", OPERATOR),
    row("POST", "/v1/workers/{id}/disks/{tag}/resize", "disks", OPERATOR),
    row("GET", "/v1/events", "events", VIEWER),
    row("GET", "/v1/jobs", "jobs", VIEWER),
    row("GET", "/v1/jobs/{id}", "jobs", VIEWER),
    row("DELETE", "/v1/jobs/{id}", "jobs", OPERATOR),
    row("GET", "/v1/jobs/{id}/events", "jobs", VIEWER),
    row("GET", "/v1/dhcp", "leases", VIEWER),
    row("GET", "/v1/leases", "leases", VIEWER),
    row("DELETE", "/v1/leases/{address}", "leases", OPERATOR),
    row("GET", "/v1/masters", "masters", VIEWER),
    row("GET", "/v1/masters/{name}", "masters", VIEWER),
    row("PUT", "/v1/masters/{name}", "masters", OPERATOR),
    row("DELETE", "/v1/masters/{name}", "masters", OPERATOR),
    row("PUT", "/v1/masters/{name}/tags", "masters", OPERATOR),
    row("GET", "/v1/operations", "operations", VIEWER),
    row("POST", "/v1/login", "session", NOBODY),
    row("POST", "/v1/logout", "session", NOBODY),
    row("GET", "/v1/whoami", "session", VIEWER),
    row("PUT", "/v1/whoami/password", "session", VIEWER),
    row("GET", "/v1/settings", "settings", VIEWER),
    row("PATCH", "/v1/settings", "settings", ADMIN),
    row("GET", "/v1/settings/registration-window", "settings", VIEWER),
    row("PUT", "/v1/settings/registration-window", "settings", OPERATOR),
    row("DELETE", "/v1/settings/registration-window", "settings", OPERATOR),
    row("GET", "/v1/ca", "system", NOBODY),
    row("GET", "/v1/openapi.json", "system", VIEWER),
    row("GET", "/v1/server-key", "system", VIEWER),
    row("POST", "/v1/server-key/rotate", "system", ADMIN),
    row("GET", "/v1/state", "system", VIEWER),
    first_run("GET", "/v1/status", "system", VIEWER),
    row("GET", "/v1/target", "system", VIEWER),
    row("GET", "/v1/tokens", "tokens", VIEWER),
    row("POST", "/v1/tokens", "tokens", VIEWER),
    row("DELETE", "/v1/tokens/{id}", "tokens", VIEWER),
    row("GET", "/v1/users", "users", ADMIN),
    first_run("POST", "/v1/users", "users", ADMIN),
    row("GET", "/v1/users/{name}", "users", ADMIN),
    row("PATCH", "/v1/users/{name}", "users", ADMIN),
    row("DELETE", "/v1/users/{name}", "users", ADMIN),
    row("PUT", "/v1/users/{name}/password", "users", ADMIN),
    row("GET", "/v1/users/{name}/tokens", "users", ADMIN),
    row("POST", "/v1/users/{name}/tokens", "users", ADMIN),
    row("DELETE", "/v1/users/{name}/tokens/{id}", "users", ADMIN),
    row("GET", "/v1/workers", "workers", VIEWER),
    row("POST", "/v1/workers", "workers", OPERATOR),
    row("POST", "/v1/workers/batch", "workers", OPERATOR),
    row("POST", "/v1/workers/batch-delete", "workers", OPERATOR),
    row("GET", "/v1/workers/{id}", "workers", VIEWER),
    row("DELETE", "/v1/workers/{id}", "workers", OPERATOR),
    row("PUT", "/v1/workers/{id}/boot", "workers", OPERATOR),
    row("GET", "/v1/workers/{id}/boot-vars", "workers", VIEWER),
    row("PUT", "/v1/workers/{id}/default-disk", "workers", OPERATOR),
    row("POST", "/v1/workers/{id}/migrate", "workers", OPERATOR),
    row("GET", "/v1/workers/{id}/status", "workers", VIEWER),
];
