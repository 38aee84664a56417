//! Every command is well formed, has an example that can be typed, and every shell gets its completions.

use super::*;
use clap::CommandFactory;

fn walk(command: &clap::Command, path: &str, visit: &mut impl FnMut(&clap::Command, &str)) {
    visit(command, path);
    for sub in command.get_subcommands().filter(|s| s.get_name() != "help") {
        walk(sub, &format!("{path} {}", sub.get_name()), visit);
    }
}

/// Words as a shell makes them of a line with single quotes.
fn words(line: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    for (at, part) in line.split('\'').enumerate() {
        for (number, piece) in if at % 2 == 0 { part.split(' ').collect() } else { vec![part] }.into_iter().enumerate() {
            if number > 0 {
                words.push(String::new());
            }
            if let Some(last) = words.last_mut() {
                last.push_str(piece);
            }
        }
    }
    words.into_iter().filter(|word| !word.is_empty()).collect()
}

#[test]
fn the_command_line_is_well_formed() {
    Arguments::command().debug_assert();
}

#[test]
fn every_command_says_what_it_does_with_an_example_that_can_be_typed() {
    let mut seen = 0;
    walk(&Arguments::command(), "kurrent", &mut |command, path| {
        seen += 1;
        assert!(command.get_about().is_some(), "{path} does not say what it does");
        let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        let examples: Vec<&str> = help.lines().filter_map(|l| l.strip_prefix("  ")).filter(|l| l.starts_with("kurrent ")).collect();
        assert!(examples.iter().any(|e| e.starts_with(path)), "{path} has no example of itself: {help:?}");
        for example in examples {
            let typed = example.split(" #").next().unwrap_or_default().split(" > ").next().unwrap_or_default();
            if let Err(error) = Arguments::try_parse_from(words(typed)) {
                panic!("the example of {path} can not be typed: {example}\n{error}");
            }
        }
    });
    assert!(seen > 90, "{seen} commands");
}

#[test]
fn every_argument_has_words_of_its_own() {
    walk(&Arguments::command(), "kurrent", &mut |command, path| {
        for argument in command.get_arguments().filter(|a| !["help", "version"].contains(&a.get_id().as_str())) {
            assert!(argument.get_help().is_some(), "{path} {}", argument.get_id());
        }
    });
}

#[test]
fn completions_are_made_for_every_shell() {
    use clap_complete::Shell;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut Arguments::command(), "kurrent", &mut script);
        let script = String::from_utf8(script).unwrap();
        for word in ["bind-batch", "join-token", "--passphrase-file", "leftover"] {
            assert!(script.contains(word.trim_start_matches('-')), "{shell} does not know {word}");
        }
    }
}
