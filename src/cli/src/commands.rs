//! What each command asks of the API, and how people see the answer.

mod agent;
mod archive;
mod batch;
mod context;
mod device;
mod disk;
mod events;
mod job;
mod migrate;
mod people;
mod server_key;
mod system;
mod worker;

use crate::arguments::system::{Api, Explain, StateFolder};
use crate::arguments::{Arguments, Command};
use crate::client::Client;
use crate::connection::{Flags, resolve};
use crate::contexts::{Contexts, place};
use crate::failure::Failure;
use crate::output::print;
use crate::session::Session;
use clap::CommandFactory;
use std::path::PathBuf;

/// Carries out a command.
pub async fn run(arguments: Arguments) -> Result<(), Failure> {
    let Arguments { url, token_file, context, ca, ca_fingerprint, output: form, command } = arguments;
    let flags = Flags { url, token_file, context, ca, ca_fingerprint };
    let variable = |name: &str| std::env::var(name).ok();
    let path = place(variable);
    match command {
        Command::Completions { shell } => return completions(shell),
        Command::Context(command) => {
            let path = path.ok_or_else(|| Failure::local("there is no place for contexts; set HOME or XDG_CONFIG_HOME"))?;
            return context::run(form, command, &flags, &path).await;
        }
        Command::Login(wanted) => {
            let path = path.ok_or_else(|| Failure::local("there is no place to keep the session; set HOME or XDG_CONFIG_HOME"))?;
            return people::login(form, wanted, &flags, &path).await;
        }
        _ => {}
    }
    let path = path.unwrap_or_else(|| PathBuf::from("contexts.yaml"));
    let contexts = if path.is_absolute() { Contexts::read(&path)? } else { Contexts::default() };
    let connection = resolve(&flags, variable, &contexts, &path)?;
    let session = Session { client: Client::new(&connection)?, form };
    match command {
        Command::Logout => people::logout(&session, &connection, &path).await,
        Command::Whoami => people::whoami(&session).await,
        Command::User(command) => people::user(&session, command).await,
        Command::Token(command) => people::token(&session, command).await,
        Command::Device(command) => device::run(&session, command).await,
        Command::Explain(Explain::Device { mac, look }) => device::explain(&session, mac, look).await,
        Command::Worker(command) => worker::run(&session, command).await,
        Command::Disk(command) => disk::run(&session, command).await,
        Command::Master(command) => disk::master(&session, command).await,
        Command::Leftover(command) => disk::leftover(&session, command).await,
        Command::Job(command) => job::run(&session, command).await,
        Command::Agent(command) => agent::run(&session, command).await,
        Command::JoinToken(command) => agent::join_token(&session, command).await,
        Command::Events(wanted) => events::run(&session, wanted).await,
        Command::Status(look) => system::status(&session, look).await,
        Command::State(StateFolder::Check) => system::state_check(&session).await,
        Command::Target(look) => system::target(&session, look).await,
        Command::Window(command) => system::window(&session, command).await,
        Command::Settings(command) => system::settings(&session, command).await,
        Command::Dhcp(crate::arguments::system::Dhcp::Status(look)) => system::dhcp_status(&session, look).await,
        Command::Lease(command) => system::lease(&session, command).await,
        Command::Credentials(command) => system::credentials(&session, command).await,
        Command::Audit(filter) => system::audit(&session, filter).await,
        Command::Backup(wanted) => archive::backup(&session, wanted).await,
        Command::Restore(wanted) => archive::restore(&session, wanted).await,
        Command::Ca => system::ca(&session).await,
        Command::ServerKey(command) => server_key::run(&session, command).await,
        Command::Api(Api::Openapi) => system::openapi(&session).await,
        // These are done above.
        Command::Login(_) | Command::Context(_) | Command::Completions { .. } => Ok(()),
    }
}

fn completions(shell: clap_complete::Shell) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "kurrent", &mut script);
    print(String::from_utf8_lossy(&script).trim_end())
}
