//! Reads the files with keys and looks for changes, and keeps an issuer's key set fresh.
//!
//! A file is compared by what it holds, about once a second: a Secret in a volume changes by a symbolic link that is
//! swapped, which no time stamp of the file tells. What cannot be used leaves the old keys in force, with a line in the log
//! and a count.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::task::{spawn_blocking, spawn_local};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tracing::{info, warn};

use super::fetch::Source;
use super::jwt::KeySet;
use super::{Auth, PodKey, Tokens, keys};
use crate::config::KeySource;
use crate::gateway::Gateway;
use crate::metrics::{AuthSource, Reload};
use crate::pool::Settings;
use crate::tls::TlsError;

/// A file that the gateway cannot start without.
#[derive(Debug, thiserror::Error)]
#[error("{file}: {why}")]
pub struct Unusable {
    file: String,
    why: String,
}

/// Reads all that `auth`, if it is another, and the pools' `settings` need before they can hold, if it has not been
/// read already.
///
/// # Errors
/// The first file that cannot be used.
pub async fn prepare<'a>(
    auth: Option<&Arc<Auth>>,
    settings: impl IntoIterator<Item = &'a Settings>,
    gateway: &Gateway,
) -> Result<(), Unusable> {
    let settings: Vec<_> = settings.into_iter().collect();
    for tls in settings.iter().filter_map(|settings| settings.tls.as_ref()) {
        let fail = |error: TlsError| Unusable {
            file: format!("pool {}", tls.pool()),
            why: error.to_string(),
        };
        tls.check().map_err(fail)?;
    }
    let pod_keys = settings.into_iter().filter_map(|settings| settings.api_key.clone());
    let sources = auth.map(of_auth).into_iter().flatten().chain(pod_keys.map(What::PodKey));
    for what in sources.filter(|what| !what.is_read()) {
        let file = what.file();
        let fail = |why| Unusable { file: file.display().to_string(), why };
        let texts = read(file.clone()).await.map_err(fail)?;
        what.apply(&texts, gateway).map_err(fail)?;
    }
    let Some((auth, tokens)) = auth.and_then(|auth| auth.tokens.as_ref().map(|of| (auth, of)))
    else {
        return Ok(());
    };
    match &tokens.provider.keys {
        KeySource::Remote { uri, ca_file, .. } => {
            let fail = |why| Unusable { file: uri.clone(), why };
            let source = Source::new(uri, ca_file.as_deref()).map_err(fail)?;
            // At the start nobody is let in before; while the daemon runs, everybody would be refused meanwhile.
            let is_start = Arc::ptr_eq(auth, &gateway.auth());
            if !is_start && tokens.keys.load().is_none() {
                let text = get(&source).await.map_err(fail)?;
                tokens.take(&text, gateway).map_err(fail)?;
            }
        }
        KeySource::Inline(text) => {
            let fail = |why| Unusable { file: "localJWKS.inline".into(), why };
            tokens.take(text.as_bytes(), gateway).map_err(fail)?;
        }
        KeySource::File(_) => {}
    }
    Ok(())
}

/// Keeps the issuer's key set of `auth` fresh for as long as that is in force, if it has to be fetched. For the control
/// thread.
pub fn follow_issuer(auth: &Arc<Auth>, gateway: &Arc<Gateway>) {
    let Some(tokens) = &auth.tokens else { return };
    if matches!(tokens.provider.keys, KeySource::Remote { .. }) {
        spawn_local(follow(Arc::clone(auth), Arc::clone(gateway)));
    }
}

/// Looks at the files of whatever is in force, for ever. For the control thread.
pub async fn watch(gateway: Arc<Gateway>) {
    let mut watched: Vec<Watched> = Vec::new();
    loop {
        let auth = Arc::clone(&gateway.auth());
        let settings: Vec<_> =
            gateway.pools().iter().map(|pool| Arc::clone(&pool.settings())).collect();
        let pod_keys = settings.iter().filter_map(|settings| settings.api_key.clone());
        let mut sources = of_auth(&auth);
        sources.extend(pod_keys.map(What::PodKey));
        watched.retain(|known| sources.iter().any(|what| what.is(&known.what)));
        for what in sources {
            if !watched.iter().any(|known| known.what.is(&what)) {
                watched.push(Watched { file: what.file(), what, content: None });
            }
        }
        for watched in &mut watched {
            watched.look(&gateway).await;
        }
        sleep(POLL).await;
    }
}

/// A file, or a folder of them, that is looked at again and again.
struct Watched {
    what: What,
    file: PathBuf,
    /// What it held at the last look, or why it could not be read; none before the first.
    content: Option<Result<Vec<String>, String>>,
}

/// What a file holds.
enum What {
    Keys(Arc<Auth>),
    KeySet(Arc<Auth>),
    PodKey(Arc<PodKey>),
}

fn of_auth(auth: &Arc<Auth>) -> Vec<What> {
    let keys = auth.keys.as_ref().map(|_| What::Keys(Arc::clone(auth)));
    let has_file = |tokens: &&Tokens| matches!(tokens.provider.keys, KeySource::File(_));
    let key_set = auth.tokens.as_ref().filter(has_file).map(|_| What::KeySet(Arc::clone(auth)));
    keys.into_iter().chain(key_set).collect()
}

impl Watched {
    async fn look(&mut self, gateway: &Gateway) {
        let now = read(self.file.clone()).await;
        if self.content.as_ref() == Some(&now) {
            return;
        }
        let applied = match &now {
            Ok(texts) => self.what.apply(texts, gateway),
            Err(why) => Err(why.clone()),
        };
        // It has been read before it came into force; what has changed since then is found here.
        if self.content.replace(now).is_none() && applied.is_ok() {
            return;
        }
        let result = if applied.is_ok() { Reload::Done } else { Reload::Failed };
        gateway.counted.reloaded(self.what.source(), result);
        let file = self.file.display();
        match applied {
            Ok(()) => info!("{file}: read anew"),
            Err(why) => warn!("{file}: {why}; what it held before stays in force"),
        }
    }
}

impl What {
    fn source(&self) -> AuthSource {
        match self {
            Self::Keys(_) => AuthSource::Keys,
            Self::KeySet(_) => AuthSource::KeySet,
            Self::PodKey(_) => AuthSource::PodKey,
        }
    }

    /// Whether it is the same, and not only of the same file.
    fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Keys(one), Self::Keys(other)) | (Self::KeySet(one), Self::KeySet(other)) => {
                Arc::ptr_eq(one, other)
            }
            (Self::PodKey(one), Self::PodKey(other)) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }

    /// Whether it has been read before.
    fn is_read(&self) -> bool {
        match self {
            Self::PodKey(key) => key.bearer().is_some(),
            Self::Keys(_) | Self::KeySet(_) => false,
        }
    }

    fn file(&self) -> PathBuf {
        let file = match self {
            Self::Keys(auth) => auth.keys.as_ref().map(|keys| keys.config.file.as_str()),
            Self::KeySet(auth) => {
                auth.tokens.as_ref().and_then(|tokens| match &tokens.provider.keys {
                    KeySource::File(file) => Some(file.as_str()),
                    KeySource::Inline(_) | KeySource::Remote { .. } => None,
                })
            }
            Self::PodKey(key) => Some(key.file.as_str()),
        };
        file.unwrap_or_default().into()
    }

    fn apply(&self, texts: &[String], gateway: &Gateway) -> Result<(), String> {
        match self {
            Self::Keys(auth) => {
                let Some(keys) = &auth.keys else { return Ok(()) };
                let mut listed = Vec::new();
                for text in texts {
                    listed.extend(keys::read(text).map_err(|wrong| wrong.to_string())?);
                }
                keys.take(listed, &gateway.metrics).map_err(|wrong| wrong.to_string())?;
                if Arc::ptr_eq(auth, &gateway.auth()) {
                    auth.hold(&gateway.metrics, Instant::now());
                }
                Ok(())
            }
            Self::KeySet(auth) => match &auth.tokens {
                Some(tokens) => tokens.take(texts.concat().as_bytes(), gateway),
                None => Ok(()),
            },
            Self::PodKey(key) => key.set(&texts.concat()).map_err(Into::into),
        }
    }
}

impl Tokens {
    fn take(&self, text: &[u8], gateway: &Gateway) -> Result<(), String> {
        let set = KeySet::read(text).map_err(|error| error.to_string())?;
        gateway.counted.auth_keys(AuthSource::KeySet, set.len());
        self.keys.store(Some(Arc::new(set)));
        Ok(())
    }
}

/// Keeps a key set fresh, until another configuration of who may send requests holds.
async fn follow(auth: Arc<Auth>, gateway: Arc<Gateway>) {
    let Some(tokens) = &auth.tokens else { return };
    let KeySource::Remote { uri, ca_file, cache } = &tokens.provider.keys else { return };
    // It was an address when the configuration was taken.
    let Ok(mut source) = Source::new(uri, ca_file.as_deref()) else { return };
    let name = &tokens.provider.name;
    let mut pause = LEAST_RETRY;
    let mut failed = true;
    while Arc::ptr_eq(&auth, &gateway.auth()) {
        let started = Instant::now();
        let taken = get(&source).await.and_then(|text| tokens.take(&text, &gateway));
        let result = if taken.is_ok() { Reload::Done } else { Reload::Failed };
        gateway.counted.reloaded(AuthSource::KeySet, result);
        let next = match taken {
            Ok(()) => {
                if std::mem::take(&mut failed) {
                    info!("the signing keys of `{name}` are known");
                }
                pause = LEAST_RETRY;
                *cache
            }
            Err(why) => {
                warn!(
                    "the signing keys of `{name}` cannot be had: {why}; those known before stay in force"
                );
                failed = true;
                // Whom to trust may have changed with the server's certificate.
                if let Some(file) = ca_file {
                    match Source::new(uri, Some(file)) {
                        Ok(anew) => source = anew,
                        Err(why) => warn!("{uri}: {why}"),
                    }
                }
                let next = pause;
                pause = (2 * pause).min(MOST_RETRY).min((*cache).max(LEAST_RETRY));
                next
            }
        };
        tokio::select! {
            () = sleep(next) => {}
            // An issuer that has new keys begins to use them. Anyone can name a key that is not known, though.
            () = tokens.unknown_key.notified() => sleep_until(started + UNKNOWN_KEY).await,
        }
    }
}

async fn get(source: &Source) -> Result<Bytes, String> {
    match timeout(WITHIN, source.get()).await {
        Ok(got) => got,
        Err(_) => Err(format!("no whole answer within {WITHIN:?}")),
    }
}

/// What a file holds, or every file of a folder, in the order of their names.
async fn read(path: PathBuf) -> Result<Vec<String>, String> {
    let done = spawn_blocking(move || read_now(&path)).await;
    // It neither panics nor is cancelled.
    let content = done.map_err(|error| error.to_string())?;
    content.map_err(|error| format!("cannot be read: {error}"))
}

fn read_now(path: &Path) -> io::Result<Vec<String>> {
    if !fs::metadata(path)?.is_dir() {
        return Ok(vec![read_file(path)?]);
    }
    let mut files = Vec::new();
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        // A Secret's volume keeps its versions under names that begin with a dot.
        let is_hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
        if !is_hidden && fs::metadata(entry.path())?.is_file() {
            files.push(entry.path());
        }
        if files.len() > MAX_FILES {
            return Err(io::Error::other(format!("more than {MAX_FILES} files")));
        }
    }
    if files.is_empty() {
        return Err(io::Error::other("the folder has no file"));
    }
    files.sort();
    files.iter().map(|file| read_file(file)).collect()
}

fn read_file(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(MAX_BYTES + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MAX_BYTES {
        return Err(io::Error::other(format!("larger than {MAX_BYTES} bytes")));
    }
    Ok(text)
}

/// How often files are looked at.
const POLL: Duration = Duration::from_secs(1);

/// Longest file, in bytes: a Secret has at most 1 MiB.
const MAX_BYTES: u64 = 1 << 20;

/// Files in a folder.
const MAX_FILES: usize = 64;

/// For a key set's whole answer, connecting included.
const WITHIN: Duration = Duration::from_secs(10);

/// After a first failure; then twice as long each time.
const LEAST_RETRY: Duration = Duration::from_millis(500);

/// The longest pause after failures.
const MOST_RETRY: Duration = Duration::from_secs(30);

/// A token that names a key that is not known has the set fetched no sooner after the last time.
const UNKNOWN_KEY: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder that goes with the test.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("sluice-{name}-{}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_file_at_its_cap_and_one_byte_more() {
        let folder = Folder::new("one-file");
        let file = folder.0.join("f");
        fs::write(&file, vec![b'x'; MAX_BYTES as usize]).unwrap();
        assert_eq!(read_now(&file).unwrap()[0].len() as u64, MAX_BYTES);
        fs::write(&file, vec![b'x'; MAX_BYTES as usize + 1]).unwrap();
        assert!(read_now(&file).unwrap_err().to_string().contains("larger than"));
        fs::write(&file, b"\xff").unwrap();
        read_now(&file).unwrap_err();
        read_now(Path::new("/dev/zero")).unwrap_err();
    }

    #[test]
    fn a_folder_at_its_cap_and_one_file_more() {
        let folder = Folder::new("many-files");
        assert!(read_now(&folder.0).unwrap_err().to_string().contains("no file"));
        fs::create_dir(folder.0.join("..version")).unwrap();
        fs::create_dir(folder.0.join("inner")).unwrap();
        fs::write(folder.0.join(".hidden"), "no").unwrap();
        let write = |number: usize| {
            fs::write(folder.0.join(format!("{number:03}")), number.to_string()).unwrap();
        };
        (0..MAX_FILES).rev().for_each(write);
        let texts = read_now(&folder.0).unwrap();
        assert_eq!((texts.len(), texts[0].as_str(), texts[9].as_str()), (MAX_FILES, "0", "9"));
        write(MAX_FILES);
        assert!(read_now(&folder.0).unwrap_err().to_string().contains("more than"));
    }
}
