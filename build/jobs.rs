//! Work in parallel within Cargo's limit.
//!
//! A build script may always run one job. Each further one needs a token of Cargo's job server, which is
//! shared with the compilers that run at the same time; without a job server the limit is `NUM_JOBS`.

use std::sync::Mutex;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, Scope};

use anyhow::{Context, Result};
use jobserver::{Acquired, Client, HelperThread};

/// The right to run jobs.
pub struct Pool {
    jobserver: Option<Client>,
    limit: usize,
}

/// A right to run one job at a time: Cargo's token, or `None` for one that needs none.
type Right = Option<Acquired>;

enum Event {
    Right(Right),
    NothingLeft,
}

/// Tells that a worker ends, even if by a panic.
struct End(Sender<Event>);

impl Drop for End {
    fn drop(&mut self) {
        let _ = self.0.send(Event::NothingLeft);
    }
}

/// The jobs that nobody has taken and the results so far.
struct Queue<T> {
    next: usize,
    count: usize,
    results: Vec<(usize, Result<T>)>,
}

impl Pool {
    /// A pool of at most `limit` jobs at a time.
    pub fn new(jobserver: Option<Client>, limit: usize) -> Self {
        Pool { jobserver, limit }
    }

    /// Runs `work(0)` to `work(count - 1)`, in about that order. After a failure no further job starts.
    ///
    /// # Errors
    /// The failures, with the number of their job; there is more than one if others were running.
    pub fn run<T: Send>(&self, count: usize, work: impl Fn(usize) -> Result<T> + Sync) -> Result<Vec<T>, Vec<anyhow::Error>> {
        let queue = Mutex::new(Queue { next: 0, count, results: Vec::new() });
        let set_up = thread::scope(|scope| {
            let (events, inbox) = mpsc::channel();
            let _requests = self.request(count.min(self.limit), &events)?;
            self.serve(scope, &queue, &work, &events, &inbox);
            Ok(())
        });
        set_up.map_err(|error| vec![error])?;
        let mut results = queue.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner()).results;
        results.sort_by_key(|(job, _)| *job);
        let (done, failed): (Vec<_>, Vec<_>) = results.into_iter().map(|(_, result)| result).partition(Result::is_ok);
        if failed.is_empty() {
            return Ok(done.into_iter().flatten().collect());
        }
        Err(failed.into_iter().filter_map(Result::err).collect())
    }

    /// Sends `wanted` rights to `events`: the first at once, the others at once or when Cargo gives them.
    /// Dropping what this returns takes the open requests back.
    fn request(&self, wanted: usize, events: &Sender<Event>) -> Result<Option<HelperThread>> {
        let free = if self.jobserver.is_some() { 1 } else { wanted.max(1) };
        for _ in 0..free {
            let _ = events.send(Event::Right(None));
        }
        let Some(client) = &self.jobserver else { return Ok(None) };
        let events = events.clone();
        let hand_on = move |token: std::io::Result<Acquired>| {
            // Without a token this build goes on with the rights that it has.
            if let Ok(token) = token {
                let _ = events.send(Event::Right(Some(token)));
            }
        };
        let helper = client.clone().into_helper_thread(hand_on).context("cannot use Cargo's job server")?;
        for _ in free..wanted {
            helper.request_token();
        }
        Ok(Some(helper))
    }

    /// Starts a worker for each right that comes, until no job is left.
    fn serve<'scope, 'env, T: Send>(
        &self,
        scope: &'scope Scope<'scope, 'env>,
        queue: &'env Mutex<Queue<T>>,
        work: &'env (impl Fn(usize) -> Result<T> + Sync),
        events: &Sender<Event>,
        inbox: &Receiver<Event>,
    ) {
        while let Ok(Event::Right(right)) = inbox.recv() {
            let end = End(events.clone());
            scope.spawn(move || {
                // Dropped in reverse: the right is given back before the end is told.
                let (_end, _right) = (end, right);
                while let Some(job) = take(queue) {
                    let result = work(job);
                    lock(queue).results.push((job, result));
                }
            });
        }
    }
}

fn lock<T>(queue: &Mutex<Queue<T>>) -> std::sync::MutexGuard<'_, Queue<T>> {
    queue.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn take<T>(queue: &Mutex<Queue<T>>) -> Option<usize> {
    let mut queue = lock(queue);
    let failed = queue.results.iter().any(|(_, result)| result.is_err());
    let job = queue.next;
    if failed || job >= queue.count {
        return None;
    }
    queue.next += 1;
    Some(job)
}
