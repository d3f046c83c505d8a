//! The configuration file in the running agent: followed, counted, given to whoever steers.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::{Notify, watch};
use tracing::info;
use weir_core::settings::Settings;
use weir_kube_watch::settings_file::{Reading, SettingsFile};
use weir_telemetry::catalogue;
use weir_telemetry::metrics::Metrics;

/// Whether the file is good: it is, and so is no file. Registered.
pub(crate) fn good(metrics: &mut Metrics) -> Gauge {
    let good = Gauge::default();
    good.set(1);
    catalogue::CONFIG_GOOD.register(metrics, good.clone());
    good
}

/// The file, if there is one, and the settings in force.
pub(crate) struct Configuration {
    file: Option<SettingsFile>,
    settings: watch::Sender<Arc<Settings>>,
}

impl Configuration {
    /// Reads the file. Without one everything is as it is built in. The receiver always has the settings in force.
    pub(crate) async fn open(path: Option<&Path>) -> Result<(Self, watch::Receiver<Arc<Settings>>)> {
        let (file, settings) = match path {
            None => (None, Settings::default()),
            Some(path) => {
                let (file, settings) = SettingsFile::open(path).await.context("--config")?;
                tell(&settings);
                (Some(file), settings)
            }
        };
        let (settings, receiver) = watch::channel(Arc::new(settings));
        Ok((Self { file, settings }, receiver))
    }

    /// Reads the file again at every change and every `reload`, and says whether it is `good`. Never ends.
    pub(crate) async fn follow(self, reload: Arc<Notify>, good: Gauge) -> Result<()> {
        let Some(mut file) = self.file else { return std::future::pending().await };
        loop {
            let taken = match file.next(&reload).await {
                Reading::New(settings) => {
                    tell(&settings);
                    self.settings.send_replace(Arc::new(settings));
                    true
                }
                Reading::Known => true,
                // The log has been told.
                Reading::Refused(_) => false,
            };
            good.set(taken.into());
        }
    }
}

fn tell(settings: &Settings) {
    info!(namespaces = settings.namespaces.len(), "the settings of the configuration file are in force");
}
