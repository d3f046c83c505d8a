//! A file that changes while it is followed.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use tokio::sync::{Notify, mpsc, watch};
use weir_kube_watch::static_file::{Contents, FollowError, follow};
use weir_kube_watch::status::{Status, StatusWriter};

/// Less than it takes until the file is read whatever the watch says.
const PATIENCE: Duration = Duration::from_secs(8);

struct Following {
    directory: TempDir,
    path: PathBuf,
    contents: mpsc::Receiver<Contents>,
    status: watch::Receiver<Status>,
    reload: Arc<Notify>,
}

fn text(service: &str) -> String {
    format!("services: [{{name: {service}, clusterIPs: [10.0.0.1], ports: [{{port: 80}}]}}]\n")
}

fn start(directory: TempDir, path: PathBuf) -> Following {
    let (sink, contents) = mpsc::channel(16);
    let (writer, status) = StatusWriter::new();
    let reload = Arc::new(Notify::new());
    let (file, notify) = (path.clone(), Arc::clone(&reload));
    tokio::spawn(async move { follow(&file, sink, writer, notify).await });
    Following { directory, path, contents, status, reload }
}

fn following(content: &str) -> Following {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("services.yaml");
    fs::write(&path, content).unwrap();
    start(directory, path)
}

impl Following {
    /// The name of the only service in what the file says next.
    async fn next(&mut self) -> String {
        let contents = tokio::time::timeout(PATIENCE, self.contents.recv()).await.expect("no news came").unwrap();
        contents.services[0].name.name.to_string()
    }

    /// The same where no watch tells, so that it comes when it is time to look.
    async fn next_look(&mut self) -> String {
        let news = tokio::time::timeout(2 * PATIENCE, self.contents.recv()).await;
        news.expect("nobody looked").unwrap().services[0].name.name.to_string()
    }

    async fn status(&mut self, wanted: impl FnMut(&Status) -> bool) -> Status {
        tokio::time::timeout(PATIENCE, self.status.wait_for(wanted)).await.expect("status never came").unwrap().clone()
    }

    fn replace(&self, content: &str) {
        let new = self.directory.path().join("services.yaml.new");
        fs::write(&new, content).unwrap();
        fs::rename(new, &self.path).unwrap();
    }
}

#[tokio::test]
async fn a_file_is_read_at_the_start_and_after_each_change() {
    let mut file = following(&text("a"));
    assert_eq!(file.next().await, "a");
    let status = file.status(Status::synced).await;
    assert!(status.connected() && status.problem().is_none());
    assert!(status.services.last_event.is_some());
    fs::write(&file.path, text("b")).unwrap();
    assert_eq!(file.next().await, "b");
    file.replace(&text("c"));
    assert_eq!(file.next().await, "c");
    file.replace(&text("d"));
    assert_eq!(file.next().await, "d", "also the file that stands in the first one's place is followed");
}

#[tokio::test]
async fn a_malformed_file_keeps_the_old_state_and_says_where_it_is_wrong() {
    let mut file = following(&text("a"));
    assert_eq!(file.next().await, "a");
    file.replace("services:\n  - nam: b\n");
    let status = file.status(|status| !status.connected()).await;
    assert!(status.synced(), "what was read before stays in force");
    let problem = status.problem().unwrap();
    assert!(problem.contains("services.yaml: line 2, column 5: ") && problem.contains("nam"), "{problem}");
    assert!(file.contents.try_recv().is_err());
    file.replace(&text("c"));
    assert_eq!(file.next().await, "c");
    assert_eq!(file.status(Status::connected).await.problem(), None);
}

#[tokio::test]
async fn a_mended_file_that_says_the_same_is_good_and_no_news() {
    let mut file = following(&text("a"));
    assert_eq!(file.next().await, "a");
    file.replace("");
    file.status(|status| !status.connected()).await;
    file.replace(&text("a"));
    file.status(Status::connected).await;
    file.replace(&text("b"));
    assert_eq!(file.next().await, "b", "nothing was sent in between");
}

#[tokio::test]
async fn a_file_that_is_missing_is_waited_for() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("services.yaml");
    let mut file = start(directory, path);
    let status = file.status(|status| status.problem().is_some_and(|problem| problem.contains("No such file"))).await;
    assert!(!status.synced());
    file.replace(&text("a"));
    assert_eq!(file.next().await, "a");
}

#[tokio::test]
async fn a_file_is_followed_whose_directory_was_made_anew_or_moved_away() {
    let root = tempfile::tempdir().unwrap();
    let home = root.path().join("home");
    fs::create_dir(&home).unwrap();
    let path = home.join("services.yaml");
    fs::write(&path, text("a")).unwrap();
    let mut file = start(root, path.clone());
    assert_eq!(file.next().await, "a");
    fs::remove_dir_all(&home).unwrap();
    file.status(|status| !status.connected()).await;
    fs::create_dir(&home).unwrap();
    fs::write(&path, text("b")).unwrap();
    assert_eq!(file.next_look().await, "b");
    fs::write(&path, text("c")).unwrap();
    assert_eq!(file.next().await, "c", "it is watched again");

    fs::rename(&home, home.with_extension("old")).unwrap();
    fs::create_dir(&home).unwrap();
    fs::write(&path, text("d")).unwrap();
    assert_eq!(file.next_look().await, "d");
    fs::write(&path, text("e")).unwrap();
    assert_eq!(file.next().await, "e");
}

#[tokio::test]
async fn a_link_that_leads_elsewhere_by_now_is_followed_there() {
    let root = tempfile::tempdir().unwrap();
    let [home, first, second] = ["home", "first", "second"].map(|name| root.path().join(name));
    for directory in [&home, &first, &second] {
        fs::create_dir(directory).unwrap();
        fs::write(directory.join("target.yaml"), text("a")).unwrap();
    }
    let path = home.join("services.yaml");
    std::os::unix::fs::symlink(first.join("target.yaml"), &path).unwrap();
    let mut file = start(root, path.clone());
    assert_eq!(file.next().await, "a");
    fs::write(second.join("target.yaml"), text("b")).unwrap();
    std::os::unix::fs::symlink(second.join("target.yaml"), home.join("new")).unwrap();
    fs::rename(home.join("new"), &path).unwrap();
    assert_eq!(file.next().await, "b");
    fs::write(second.join("target.yaml"), text("c")).unwrap();
    assert_eq!(file.next().await, "c");
}

#[tokio::test]
async fn a_file_behind_swapped_links_is_followed_as_in_a_mounted_config_map() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().to_owned();
    let version = |name: &str, content: &str| {
        fs::create_dir(root.join(name)).unwrap();
        fs::write(root.join(name).join("services.yaml"), content).unwrap();
        std::os::unix::fs::symlink(name, root.join("data.new")).unwrap();
        fs::rename(root.join("data.new"), root.join("data")).unwrap();
    };
    version("1", &text("a"));
    std::os::unix::fs::symlink(Path::new("data/services.yaml"), root.join("services.yaml")).unwrap();
    let mut file = start(directory, root.join("services.yaml"));
    assert_eq!(file.next().await, "a");
    version("2", &text("b"));
    assert_eq!(file.next().await, "b");
}

#[tokio::test]
async fn a_reload_reads_a_file_whose_change_was_not_seen() {
    // The links lead through a directory that nobody watches.
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().to_owned();
    for name in ["config", "1", "2"] {
        fs::create_dir(root.join(name)).unwrap();
        fs::write(root.join(name).join("real.yaml"), text(&format!("v{name}"))).unwrap();
    }
    std::os::unix::fs::symlink("1", root.join("current")).unwrap();
    std::os::unix::fs::symlink("../current/real.yaml", root.join("config/services.yaml")).unwrap();
    let mut file = start(directory, root.join("config/services.yaml"));
    assert_eq!(file.next().await, "v1");
    fs::remove_file(root.join("current")).unwrap();
    std::os::unix::fs::symlink("2", root.join("current")).unwrap();
    file.reload.notify_one();
    assert_eq!(file.next().await, "v2");
}

#[tokio::test]
async fn a_directory_that_does_not_exist_is_an_error_that_names_it() {
    let (sink, _contents) = mpsc::channel(1);
    let (writer, _status) = StatusWriter::new();
    let error = follow(Path::new("/nonexistent/services.yaml"), sink, writer, Arc::default()).await.unwrap_err();
    assert!(matches!(error, FollowError::Watch { .. }));
    assert!(error.to_string().starts_with("cannot watch directory /nonexistent for changes"), "{error}");
}
