//! A job from its start to its end.

use super::*;

fn made() -> Result<Made, StorageError> {
    Ok(Made::Master("a_tpl_1.img".parse().unwrap()))
}

#[tokio::test]
async fn a_job_is_told_from_its_start_to_its_end() {
    let jobs = Jobs::default();
    let mut news = jobs.subscribe();
    let job = jobs.start(Kind::Import, "receiving".into(), None, 10).unwrap();
    job.begin().unwrap();
    job.add(10).unwrap();
    job.commit().unwrap();
    job.finish(made());
    let mut states = vec![];
    while let Ok(view) = news.try_recv() {
        states.push(view.state);
    }
    assert_eq!(states, [JobState::Waiting, JobState::Running, JobState::Running, JobState::Done]);
    let view = jobs.view(job.id()).unwrap();
    assert_eq!((view.done_bytes, view.total_bytes, view.result.as_deref()), (10, 10, Some("/v1/masters/a_tpl_1.img")));
    assert!(view.finished_at.is_some() && view.bytes_per_second > 0);
}

#[tokio::test]
async fn a_cancel_stops_the_work_and_answers_when_it_has_stopped() {
    let jobs = Jobs::default();
    let job = jobs.start(Kind::Clone, "copying".into(), None, 10).unwrap();
    job.begin().unwrap();
    let id = job.id().to_owned();
    let worker = tokio::spawn(async move {
        while job.add(1).is_ok() {
            tokio::task::yield_now().await;
        }
        assert_eq!(job.commit().unwrap_err().code, CANCELLED);
        let error = job.explain(StorageError::new("disk_dir", 500, "an error of the copy".into()));
        job.finish(Err(error));
    });
    assert_eq!(jobs.cancel(&id).await.unwrap().state, JobState::Cancelled);
    worker.await.unwrap();
    assert_eq!(jobs.cancel(&id).await.unwrap().state, JobState::Cancelled, "asked again, the answer is the same");
}

#[tokio::test]
async fn what_is_being_recorded_or_has_ended_can_not_be_cancelled() {
    let jobs = Jobs::default();
    let job = jobs.start(Kind::Clone, "copying".into(), None, 10).unwrap();
    job.commit().unwrap();
    assert_eq!(jobs.cancel(job.id()).await.unwrap_err().code, "job_ending");
    job.finish(made());
    assert_eq!(jobs.cancel(job.id()).await.unwrap_err().code, "job_finished");
    assert_eq!(jobs.cancel("none").await.unwrap_err().code, "job_not_found");
}

#[test]
fn memory_of_jobs_is_bounded_and_a_dropped_one_has_failed() {
    let jobs = Jobs::default();
    for _ in 0..KEPT + 20 {
        drop(jobs.start(Kind::Clone, "copying".into(), None, 10).unwrap());
    }
    assert_eq!(jobs.views().len(), KEPT);
    assert!(jobs.views().iter().all(|j| (j.state, j.code) == (JobState::Failed, Some("internal"))));
    let held: Vec<Running> = (0..MOST_UNFINISHED).map(|_| jobs.start(Kind::Clone, "copying".into(), None, 10).unwrap()).collect();
    assert_eq!(jobs.start(Kind::Clone, "copying".into(), None, 10).map(|_| ()).unwrap_err().code, "too_many_jobs");
    drop(held);
}
