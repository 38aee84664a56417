//! Long requests.

use super::*;

/// Begins an upload that never ends by itself.
async fn upload(api: &Server, name: &str) -> TcpStream {
    let mut stream = TcpStream::connect(api.address).await.unwrap();
    let head = format!(
        "PUT /v1/masters/{name} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {}\r\nContent-Length: {}\r\n\r\n",
        api.token,
        1_u64 << 40
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_that_makes_progress_outlives_the_lifetime_of_a_connection_and_a_stuck_one_does_not() {
    let lifetime = Duration::from_secs(1);
    // Any octet is progress: how much a busy machine carries in that time nobody knows.
    let api = server_with(tempfile::tempdir().unwrap(), Limits { lifetime, least: 1, ..serve::LIMITS }).await;
    let mut stuck = upload(&api, "a_tpl_stuck.img").await;
    assert_eq!(rest(&mut stuck).await, "", "cut off");
    let mut moving = upload(&api, "a_tpl_moving.img").await;
    let started = std::time::Instant::now();
    let zeros = vec![0; 256 << 10];
    while started.elapsed() < 4 * lifetime {
        moving.write_all(&zeros).await.expect("an upload that moves is not cut off");
        // Not more than it takes: all of it goes to the disk.
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
