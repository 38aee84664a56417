//! What goes on after the answer began: events.

use super::*;

async fn listen(api: &Server) -> TcpStream {
    let mut stream = TcpStream::connect(api.address).await.unwrap();
    let head = format!("GET /v1/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {}\r\n\r\n", api.token);
    stream.write_all(head.as_bytes()).await.unwrap();
    until(&mut stream, "text/event-stream").await;
    stream
}

async fn until(stream: &mut TcpStream, what: &str) -> String {
    let mut seen = String::new();
    let mut octets = [0; 4096];
    while !seen.contains(what) {
        let read = tokio::time::timeout(WITHIN, stream.read(&mut octets)).await.expect("in time").unwrap();
        assert!(read > 0, "it ended: {seen}");
        seen.push_str(&String::from_utf8_lossy(&octets[..read]));
    }
    seen
}

#[tokio::test]
async fn changes_are_told_to_who_listens_and_stopping_lets_them_go() {
    let api = server().await;
    let mut stream = listen(&api).await;
    api.expect(("POST", "/v1/workers", json!({"worker_id": "w1"})), 201, "").await;
    let seen = until(&mut stream, "worker-create").await;
    assert!(seen.contains("event: change") && seen.contains("\"object\":\"w1\"") && seen.contains("\"generation\":1"), "{seen}");
    api.stop.send_replace(true);
    rest(&mut stream).await;
    tokio::time::timeout(WITHIN, api.served).await.expect("listeners do not hold it up").unwrap().unwrap();
}

#[tokio::test]
async fn a_stream_of_few_events_outlives_what_a_silent_connection_has() {
    let lifetime = Duration::from_secs(2);
    // What an upload must carry to live on is far more than all events here.
    let api = server_with(tempfile::tempdir().unwrap(), Limits { lifetime, least: 1 << 40, ..serve::LIMITS }).await;
    let mut stream = listen(&api).await;
    let begun = std::time::Instant::now();
    for number in 0.. {
        let worker = format!("w{number}");
        api.shared.ledger.submit(kurrent_core::ledger::Change::CreateWorker { worker: worker.parse().unwrap() }, "test").await.unwrap();
        until(&mut stream, &format!("\"{worker}\"")).await;
        if begun.elapsed() > lifetime * 3 {
            break;
        }
        // Many in each lifetime: a stall must not make it silent.
        tokio::time::sleep(lifetime / 50).await;
    }
}
