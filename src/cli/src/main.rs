//! `kurrent`: the operator's program, one client of the appliance's REST API.

mod arguments;
mod client;
mod commands;
mod confirm;
mod connection;
mod contexts;
mod failure;
mod output;
mod progress;
mod session;
mod sse;
mod trust;
mod upload;
mod watch;

use arguments::Arguments;
use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let result = match runtime {
        Ok(runtime) => runtime.block_on(commands::run(arguments)),
        Err(error) => Err(failure::Failure::local(format!("the runtime can not start: {error}"))),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("kurrent: {failure}");
            ExitCode::from(failure.exit_code())
        }
    }
}
