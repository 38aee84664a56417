//! TFTP as independent clients and a raw one see it.

use crate::net::{DEADLINE, Net, SERVER, SILENCE, loader};
use crate::raw_tftp::{answers, collect, read, request, socket};
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

/// Every independent client, against every kind of port, with the files of the folder.
#[test]
fn files_of_the_folder_arrive_on_a_port_range_and_on_a_single_port() -> Result<()> {
    for (kind, more) in [("range", "    ports: {first: 50000, last: 50007}\n"), ("single", "    singlePort: on\n")] {
        let net = Net::new(&format!("tftp-{kind}"))?;
        fs::create_dir_all(net.path("tftp/1a2b3c4d"))?;
        // Whole blocks only: the last one is empty (crowbar-core 1078).
        let wanted: Vec<u8> = (0..512 * 300_u32).map(|n| u8::try_from(n % 241).unwrap_or(0)).collect();
        fs::write(net.path("tftp/1a2b3c4d/start4.elf"), &wanted)?;
        net.configure(&format!("  tftp:\n    folder: {}\n{more}", net.path("tftp").display()))?;
        let _daemon = net.serve()?;
        let client = net.client(MAC)?;
        client.address("10.77.0.20/24")?;
        let (server, got) = (SERVER.to_string(), net.path("got").to_string_lossy().into_owned());
        let url = format!("tftp://{server}/1a2b3c4d/start4.elf");
        let curl = ["-s", "-S", "-o", &got, &url];
        let hpa = [&server, "-m", "binary", "-c", "get", "\\1A2B3C4D\\start4.elf", &got];
        let atftp = ["--option", "blksize 1468", "--option", "windowsize 32", "-g", "-r", "1a2b3c4d/START4.ELF", "-l", &got, &server];
        let busybox = ["tftp", "-g", "-r", "./1a2b3c4d//start4.elf", "-l", &got, &server];
        let cases: [(&str, &[&str]); 4] = [("curl", &curl), ("tftp", &hpa), ("atftp", &atftp), ("busybox", &busybox)];
        for (program, arguments) in cases {
            let _ = fs::remove_file(&got);
            let output = client.output(program, arguments)?;
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            ensure!(fs::read(&got).is_ok_and(|octets| octets == wanted), "{kind}: {program} {arguments:?}: {} {said}", output.status);
        }
        // A Pi goes on to the common folder only when it is told, at once.
        let pi = socket(&client, OWN)?;
        pi.send_to(&request(1, "ffffffff/start4.elf", &[("tsize", "0"), ("blksize", "1024")]), (SERVER, 69))?;
        let mut buffer = [0; 600];
        pi.set_read_timeout(Some(DEADLINE))?;
        let (len, from) = pi.recv_from(&mut buffer)?;
        ensure!(buffer[..len].starts_with(&[0, 5, 0, 1]), "{:?}", &buffer[..len]);
        let port = from.port();
        ensure!(if kind == "range" { (50_000..=50_007).contains(&port) } else { port == 69 }, "{port}");
        net.passed();
    }
    Ok(())
}

#[test]
fn all_of_32_transfers_end_well_on_a_single_port_when_one_datagram_in_50_is_lost() -> Result<()> {
    let net = Net::new("tftp-single-loss")?;
    net.configure("  tftp:\n    singlePort: on\n")?;
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
fn a_network_that_the_operator_names_is_answered_and_others_are_not() -> Result<()> {
    let net = Net::new("tftp-allow")?;
    net.configure("  tftp:\n    allow: [192.0.2.0/25]\n")?;
    let daemon = net.serve()?;
    let client = net.client(MAC)?;
    client.address("10.77.0.20/24")?;
    client.address("192.0.2.9/24")?;
    client.address("192.0.2.200/24")?;
    kurrent_harness::tools::run(net.command("ip").args(["route", "add", "192.0.2.0/24", "dev", "boot"]))?;
    let stranger = socket(&client, Ipv4Addr::new(192, 0, 2, 200))?;
    stranger.send_to(&request(1, "snponly.efi", &[]), (SERVER, 69))?;
    let named = socket(&client, Ipv4Addr::new(192, 0, 2, 9))?;
    ensure!(read(&named, "snponly.efi", 4, 1_000_000)? == loader(0));
    ensure!(collect(&stranger, SILENCE).is_empty());
    daemon.wait_for_log("spec.tftp.allow")?;
    net.passed();
    Ok(())
}

#[test]
fn a_block_is_cut_to_the_link_so_that_nothing_is_fragmented() -> Result<()> {
    let net = Net::new("tftp-mtu")?;
    let _daemon = net.serve()?;
    let client = net.client(MAC)?;
    client.address("10.77.0.20/24")?;
    let asks = socket(&client, OWN)?;
    for (asked, granted) in [("65464", "1468"), ("8192", "1468"), ("1468", "1468"), ("1024", "1024"), ("8", "8")] {
        let asks = if granted == asked { socket(&client, OWN)? } else { asks.try_clone()? };
        asks.send_to(&request(1, "snponly.efi", &[("blksize", asked)]), (SERVER, 69))?;
        asks.set_read_timeout(Some(DEADLINE))?;
        let mut buffer = [0; 600];
        let (len, from) = asks.recv_from(&mut buffer)?;
        ensure!(buffer[..len] == *format!("\0\x06blksize\0{granted}\0").as_bytes(), "{asked}: {:?}", &buffer[..len]);
        asks.send_to(&[0, 5, 0, 0, 0], from)?;
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
        let answers = answers(&socket)?;
        ensure!(answers.len() == 1 && answers[0].starts_with(&[0, 5]), "{name:?}: {answers:?}");
        ensure!(!String::from_utf8_lossy(&answers[0]).contains(&*net.path("").to_string_lossy()), "a path on the wire");
    }
    let socket = socket(&client, OWN)?;
    socket.send_to(&request(2, "snponly.efi", &[]), (SERVER, 69))?;
    let answers = answers(&socket)?;
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
