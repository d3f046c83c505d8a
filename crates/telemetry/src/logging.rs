//! The log: structured events to standard error, filtered by a text that can be changed while the process runs.

use std::fmt;
use std::io::{self, IsTerminal};
use std::str::FromStr;

use tracing::Subscriber;
use tracing_subscriber::filter::{EnvFilter, ParseError};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::{Layer, Registry, reload};

/// What a library says in its own words at each retry while our own watches tell it once. A filter that names the
/// library overrides it.
const QUIETER: &str = "kube_runtime::watcher=error,kube_client=off";

/// The form of a line.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object for each event.
    Json,
}

impl fmt::Display for LogFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Text => "text",
            Self::Json => "json",
        })
    }
}

impl FromStr for LogFormat {
    type Err = LoggingError;

    fn from_str(text: &str) -> Result<Self, LoggingError> {
        match text {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            other => Err(LoggingError::Format(other.to_owned())),
        }
    }
}

/// Why the log cannot be set up or changed.
#[derive(Debug, thiserror::Error)]
pub enum LoggingError {
    /// Not a form of a line.
    #[error("log format \"{0}\" is neither text nor json")]
    Format(String),
    /// Not a filter.
    #[error("log filter \"{filter}\": {cause} (such as: info, or weir_kube_watch=debug,info)")]
    Filter {
        /// What was given.
        filter: String,
        /// What is wrong with it.
        cause: ParseError,
    },
    /// Somebody else has set up the process's log.
    #[error("the log of this process is set up already")]
    Twice,
    /// The log is gone, so its filter cannot be changed.
    #[error("the log's filter cannot be changed: {0}")]
    Gone(#[source] reload::Error),
}

/// Changes the filter of a log that runs.
#[derive(Clone, Debug)]
pub struct FilterHandle(reload::Handle<EnvFilter, Registry>);

impl FilterHandle {
    /// Replaces the filter, such as `info` or `weir_datapath=debug,info`.
    ///
    /// # Errors
    /// If the text is no filter; the old one stays in force.
    pub fn set(&self, filter: &str) -> Result<(), LoggingError> {
        self.0.reload(parse(filter)?).map_err(LoggingError::Gone)
    }

    /// The filter in force.
    #[must_use]
    pub fn get(&self) -> String {
        self.0.with_current(ToString::to_string).unwrap_or_default()
    }
}

/// Installs the log of the process: to standard error, in colour if that is a terminal and `NO_COLOR` is unset.
///
/// # Errors
/// If `filter` is none, or a log is installed already.
pub fn init(filter: &str, format: LogFormat) -> Result<FilterHandle, LoggingError> {
    let colour = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let (subscriber, handle) = subscriber(filter, format, colour, io::stderr)?;
    tracing::subscriber::set_global_default(subscriber).map_err(|_already| LoggingError::Twice)?;
    Ok(handle)
}

/// A log that writes to `writer`.
///
/// # Errors
/// If `filter` is none.
pub fn subscriber<W>(
    filter: &str,
    format: LogFormat,
    colour: bool,
    writer: W,
) -> Result<(impl Subscriber + Send + Sync, FilterHandle), LoggingError>
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let (filter, handle) = reload::Layer::new(parse(filter)?);
    let lines = tracing_subscriber::fmt::layer().with_writer(writer).with_ansi(colour);
    let lines = match format {
        LogFormat::Text => lines.boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    };
    Ok((tracing_subscriber::registry().with(filter).with(lines), FilterHandle(handle)))
}

fn parse(filter: &str) -> Result<EnvFilter, LoggingError> {
    let given = if filter.trim().is_empty() { "info" } else { filter };
    // Later directives override earlier ones for the same target.
    EnvFilter::try_new(format!("{QUIETER},{given}"))
        .map_err(|cause| LoggingError::Filter { filter: filter.to_owned(), cause })
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Lines {
        fn text(&self) -> String {
            String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
        }
    }

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn log(filter: &str, format: LogFormat, act: impl FnOnce(&FilterHandle)) -> String {
        let lines = Lines::default();
        let writer = lines.clone();
        let (subscriber, handle) = subscriber(filter, format, false, move || writer.clone()).unwrap();
        tracing::subscriber::with_default(subscriber, || act(&handle));
        lines.text()
    }

    #[test]
    fn text_lines_carry_fields() {
        let text = log("info", LogFormat::Text, |_| tracing::info!(service = "default/web", "programmed"));
        assert!(text.contains("INFO"), "{text}");
        assert!(text.contains("programmed service=\"default/web\""), "{text}");
    }

    #[test]
    fn json_lines_are_one_object_each_with_fields_at_the_top() {
        let text = log("info", LogFormat::Json, |_| tracing::warn!(kind = "nodes", "lost"));
        let value: serde_json::Value = serde_json::from_str(text.trim_end()).unwrap();
        assert_eq!(value["level"], "WARN");
        assert_eq!(value["message"], "lost");
        assert_eq!(value["kind"], "nodes");
    }

    #[test]
    fn the_filter_can_be_changed_while_running() {
        let text = log("info", LogFormat::Text, |handle| {
            tracing::debug!("unseen");
            handle.set("debug").unwrap();
            tracing::debug!("seen");
        });
        assert!(!text.contains("unseen") && text.contains("seen"), "{text}");
    }

    #[test]
    fn a_wrong_filter_is_refused_and_the_old_one_stays() {
        let text = log("info", LogFormat::Text, |handle| {
            let error = handle.set("weir=loud").unwrap_err().to_string();
            assert!(error.starts_with("log filter \"weir=loud\": "), "{error}");
            tracing::info!("still here");
        });
        assert!(text.contains("still here"), "{text}");
    }

    #[test]
    fn retries_of_the_library_stay_out_of_the_log_unless_asked_for() {
        let say = || tracing::warn!(target: "kube_runtime::watcher", "watch list error with 403");
        assert_eq!(log("debug", LogFormat::Text, |_| say()), "");
        assert!(log("kube_runtime::watcher=warn", LogFormat::Text, |_| say()).contains("403"));
    }

    #[test]
    fn an_empty_filter_is_info() {
        let text = log("", LogFormat::Text, |_| {
            tracing::info!("shown");
            tracing::debug!("hidden");
        });
        assert!(text.contains("shown") && !text.contains("hidden"), "{text}");
    }

    #[test]
    fn formats_are_named_text_and_json() {
        assert_eq!("json".parse::<LogFormat>().unwrap(), LogFormat::Json);
        assert_eq!(LogFormat::Text.to_string().parse::<LogFormat>().unwrap(), LogFormat::Text);
        assert_eq!("xml".parse::<LogFormat>().unwrap_err().to_string(), "log format \"xml\" is neither text nor json");
    }
}
