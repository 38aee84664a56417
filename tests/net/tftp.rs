//! TFTP as independent clients and a raw one see it.

use crate::net::{Net, SERVER, SILENCE, loader};
use crate::raw_tftp::{collect, read, request, socket};
use anyhow::{Result, ensure};
use std::fs;
use std::net::Ipv4Addr;
use std::time::Duration;

const MAC: &str = "52:54:00:00:04:01";
const OWN: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 20);

#[test]
fn independent_clients_get_the_loaders_octet_for_octet() -> Result<()> {
    let net = Net::new("tftp-clients")?;
    let _daemon = net.serve()?;
    let client = net.client(MAC)?;
    client.address("10.77.0.20/24")?;
    let server = SERVER.to_string();
    let url = |name: &str| format!("tftp://{server}/{name}");
    let got = net.path("got");
    let to = got.to_string_lossy().into_owned();
    let (snponly, amd64) = (url("snponly.efi"), url("ipxe-amd64.efi"));
    let curl = ["-s", "-S", "-o", &to, "--tftp-blksize", "1024", &snponly];
    let curl_plain = ["-s", "-S", "-o", &to, "--tftp-no-options", &amd64];
    let hpa = [&server, "-m", "binary", "-c", "get", "/undionly.kpxe", &to];
    let atftp = [
        "--option",
        "blksize 1468",
        "--option",
        "windowsize 16",
        "--option",
        "tsize 0",
        "--option",
        "timeout 2",
        "-g",
        "-r",
        "ipxe-arm64.efi",
        "-l",
        &to,
        &server,
    ];
    let atftp_plain = ["-g", "-r", "\\SNPONLY.EFI", "-l", &to, &server];
    let busybox = ["tftp", "-g", "-b", "1400", "-r", "undionly.kpxe", "-l", &to, &server];
    let cases: [(&str, &[&str], usize); 6] = [
        ("curl", &curl, 0),
        ("curl", &curl_plain, 1),
        ("tftp", &hpa, 3),
        ("atftp", &atftp, 2),
        ("atftp", &atftp_plain, 0),
        ("busybox", &busybox, 3),
    ];
    for (program, arguments, index) in cases {
        let _ = fs::remove_file(&got);
        let output = client.output(program, arguments)?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(fs::read(&got).is_ok_and(|octets| octets == loader(index)), "{program} {arguments:?}: {} {said}", output.status);
    }
    let script = client.output("curl", &["-s", &url("autoexec.ipxe")])?;
    ensure!(script.stdout.starts_with(b"#!ipxe\n") && String::from_utf8_lossy(&script.stdout).contains("http://10.77.0.1"));
    net.passed();
    Ok(())
}

#[test]
fn all_of_32_transfers_end_well_when_one_datagram_in_50_is_lost() -> Result<()> {
    let net = Net::new("tftp-loss")?;
    let _daemon = net.serve()?;
    let client = net.client(MAC)?;
    client.address("10.77.0.20/24")?;
    let mut threads = Vec::new();
    for turn in 0..32_u16 {
        let socket = socket(&client, OWN)?;
        let window = [1, 4, 16, 64][usize::from(turn % 4)];
        threads.push(std::thread::spawn(move || read(&socket, "snponly.efi", window, 50)));
    }
    for thread in threads {
        let octets = thread.join().map_err(|_| anyhow::anyhow!("a client panicked"))??;
        ensure!(octets == loader(0));
    }
    net.passed();
    Ok(())
}

#[test]
fn only_the_names_of_the_table_are_files_and_writing_is_refused() -> Result<()> {
    let net = Net::new("tftp-names")?;
    let _daemon = net.serve()?;
    fs::write(net.path("files/secret"), "secret")?;
    fs::remove_file(net.path("files/undionly.kpxe"))?;
    std::os::unix::fs::symlink(net.path("files/secret"), net.path("files/undionly.kpxe"))?;
    let client = net.client(MAC)?;
    client.address("10.77.0.20/24")?;
    for name in ["secret", "../kurrent.yaml", "/etc/passwd", "..\\kurrent.yaml", "./../state/leases", "", "undionly.kpxe"] {
        let socket = socket(&client, OWN)?;
        socket.send_to(&request(1, name, &[]), (SERVER, 69))?;
        let answers = collect(&socket, Duration::from_millis(500));
        ensure!(answers.len() == 1 && answers[0].starts_with(&[0, 5]), "{name:?}: {answers:?}");
        ensure!(!String::from_utf8_lossy(&answers[0]).contains(&*net.path("").to_string_lossy()), "a path on the wire");
    }
    let socket = socket(&client, OWN)?;
    socket.send_to(&request(2, "snponly.efi", &[]), (SERVER, 69))?;
    let answers = collect(&socket, Duration::from_millis(500));
    ensure!(answers.len() == 1 && answers[0].starts_with(&[0, 5, 0, 2]), "{answers:?}");
    ensure!(fs::read(net.path("files/snponly.efi"))? == loader(0));
    net.passed();
    Ok(())
}

#[test]
fn a_client_that_never_answers_is_sent_three_packets_and_a_stranger_off_the_link_none() -> Result<()> {
    let net = Net::new("tftp-amplifier")?;
    let _daemon = net.serve()?;
    let client = net.client(MAC)?;
    client.address("10.77.0.20/24")?;
    client.address("192.0.2.9/24")?;
    let silent = socket(&client, OWN)?;
    silent.send_to(&request(1, "snponly.efi", &[("windowsize", "64"), ("blksize", "1468")]), (SERVER, 69))?;
    let answers = collect(&silent, Duration::from_secs(9));
    let data = answers.iter().filter(|a| a.starts_with(&[0, 3]) || a.starts_with(&[0, 6])).count();
    ensure!(data == 3, "{answers:?}");
    // The way back exists, so silence is the server's own.
    kurrent_harness::tools::run(net.command("ip").args(["route", "add", "192.0.2.0/24", "dev", "boot"]))?;
    let stranger = socket(&client, Ipv4Addr::new(192, 0, 2, 9))?;
    stranger.send_to(&request(1, "snponly.efi", &[]), (SERVER, 69))?;
    ensure!(collect(&stranger, SILENCE).is_empty());
    net.passed();
    Ok(())
}

#[test]
fn random_and_cut_packets_are_survived_on_port_69() -> Result<()> {
    let net = Net::new("junk-69")?;
    let mut daemon = net.serve()?;
    let client = net.client(MAC)?;
    client.address("10.77.0.20/24")?;
    let junk = socket(&client, OWN)?;
    let whole = request(1, "snponly.efi", &[("blksize", "1468"), ("windowsize", "64"), ("tsize", "0")]);
    for len in 0..whole.len() {
        junk.send_to(&whole[..len], (SERVER, 69))?;
    }
    let mut state = 0x2545_f491_u32;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state
    };
    for _ in 0..5000 {
        let mut octets: Vec<u8> = (0..random() % 700).map(|_| random().to_le_bytes()[0]).collect();
        if let [first, second, ..] = octets.as_mut_slice() {
            (*first, *second) = (0, u8::try_from(random() % 8).unwrap_or(0));
        }
        junk.send_to(&octets, (SERVER, 69))?;
    }
    let clean = socket(&client, OWN)?;
    ensure!(read(&clean, "snponly.efi", 16, 1_000_000)? == loader(0));
    ensure!(daemon.runs() && !daemon.log().contains("panicked"));
    net.passed();
    Ok(())
}
