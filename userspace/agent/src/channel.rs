//! Channels of which only the newest value counts.

use tokio::sync::watch;

/// Puts a value into a channel. Who waits for changes is woken only if it is another one than before.
pub(crate) fn publish<T: PartialEq>(channel: &watch::Sender<T>, now: T) {
    channel.send_if_modified(|known| {
        let is_news = *known != now;
        *known = now;
        is_news
    });
}
