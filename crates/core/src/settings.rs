//! What people want of the steering: annotations of a Service, then the namespace's settings, then the defaults of the
//! configuration file, then what is built in.
//!
//! A value that cannot be read never takes effect: the next one below it stays in force, and whoever wrote it is told.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use jiff::SignedDuration;

use crate::load::Share;
use crate::model::ObjectName;
use crate::policies::ability::{Factors, Level, UnknownClass};
use crate::policies::{Kind, Parameters, UnknownPolicy};
use crate::service_series::{ANNOTATION as METRICS, OWN};

/// What our annotations begin with. The rest is a [`Key`]'s name.
pub const ANNOTATION_PREFIX: &str = "weir.dev/";
/// Bytes of the longest value that makes sense: a namespace, a slash and a name, of 63 bytes each.
const LONGEST_VALUE: usize = 127;
/// Bytes of a label of a domain name, as namespaces and Services are called (RFC 1123, section 2.1).
const LONGEST_LABEL: usize = 63;
/// Letters in which a misspelt name may differ from the one that was meant.
const MISSPELT: usize = 3;

/// The settings by name.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Key {
    /// Which policy divides new flows.
    Policy,
    /// Utilisation up to which flows stay.
    Target,
    /// What the requests need most.
    RequestClass,
    /// The Service that this one needs to answer.
    ReliesOn,
    /// Most that may leave the node.
    MaxSpill,
    /// Round-trip time beyond which no flow goes.
    MaxRtt,
}

impl Key {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Policy, Self::Target, Self::RequestClass, Self::ReliesOn, Self::MaxSpill, Self::MaxRtt];

    /// Its name in the configuration file; with [`ANNOTATION_PREFIX`] before it, the annotation.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Policy => "policy",
            Self::Target => "target",
            Self::RequestClass => "request-class",
            Self::ReliesOn => "relies-on",
            Self::MaxSpill => "max-spill",
            Self::MaxRtt => "max-rtt",
        }
    }
}

impl FromStr for Key {
    type Err = UnknownKey;

    fn from_str(name: &str) -> Result<Self, UnknownKey> {
        Self::ALL.into_iter().find(|key| key.name() == name).ok_or_else(|| {
            let distance = |key: &Self| strsim::damerau_levenshtein(name, key.name());
            let nearest = Self::ALL.into_iter().min_by_key(distance).filter(|key| distance(key) <= MISSPELT);
            UnknownKey { name: name.to_owned(), nearest }
        })
    }
}

/// A setting that nobody knows.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("there is no setting of this name; {}", advice(*.nearest))]
pub struct UnknownKey {
    /// Its name, without [`ANNOTATION_PREFIX`].
    pub name: String,
    /// What may have been meant.
    pub nearest: Option<Key>,
}

fn advice(nearest: Option<Key>) -> String {
    match nearest {
        Some(key) => format!("did you mean {}?", key.name()),
        None => format!("known are {}", Key::ALL.map(Key::name).join(", ")),
    }
}

/// Why a value is refused.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum WrongValue {
    /// No policy.
    #[error(transparent)]
    Policy(#[from] UnknownPolicy),
    /// No target.
    #[error("\"{0}\" is not a number above 0 and up to 1: write 0.8 for 80 %")]
    Target(String),
    /// No request class.
    #[error(transparent)]
    RequestClass(#[from] UnknownClass),
    /// No Service.
    #[error("\"{0}\" names no Service: write NAMESPACE/NAME, or NAME for one of the same namespace")]
    ReliesOn(String),
    /// A Service of no namespace, where there is none to take it from.
    #[error("\"{0}\" names a Service of no namespace: write NAMESPACE/NAME")]
    NoNamespace(String),
    /// A Service that relies on itself.
    #[error("a Service cannot rely on itself: name the one that it needs to answer")]
    Itself,
    /// No share.
    #[error("\"{0}\" is not a number from 0 to 1: write 0.5 for 50 %")]
    MaxSpill(String),
    /// No time.
    #[error("\"{0}\" is not a time above 0: write 20ms, 500us or 1s")]
    MaxRtt(String),
    /// Nothing that makes sense is that long.
    #[error("a value of {0} bytes is too long: {LONGEST_VALUE} are enough for all of them")]
    TooLong(usize),
}

/// An annotation of ours that takes no effect.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Wrong {
    /// Its value is refused.
    #[error(
        "annotation {ANNOTATION_PREFIX}{}: {why}; the namespace's setting or the default stays in force", .key.name()
    )]
    Value {
        /// Which one.
        key: Key,
        /// Why.
        why: WrongValue,
    },
    /// There is none of this name.
    #[error("annotation {ANNOTATION_PREFIX}{}: {}; it does nothing", .0.name, .0)]
    Unknown(UnknownKey),
    /// It asks for something else than series of its own.
    #[error("annotation {METRICS}: \"{0}\" is not \"{OWN}\"; the Service has series of its own as its name has it")]
    Series(String),
}

/// What a Service's annotations say.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Annotations {
    /// Of the steering; None if nothing takes effect.
    pub overrides: Option<Box<Overrides>>,
    /// Whether the Service asks for series of its own in the metrics.
    pub own_series: bool,
    /// Which of ours are wrong.
    pub wrong: Vec<Wrong>,
}

impl Annotations {
    /// Reads a Service's annotations. Those of others are ignored.
    #[must_use]
    pub fn of<'a>(service: &ObjectName, annotations: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let (mut own, mut read) = (Overrides::default(), Self::default());
        for (annotation, text) in annotations {
            let Some(name) = annotation.strip_prefix(ANNOTATION_PREFIX) else { continue };
            if annotation == METRICS {
                read.own_series = text.trim() == OWN;
                if !read.own_series {
                    read.wrong.push(Wrong::Series(text.to_owned()));
                }
                continue;
            }
            match name.parse() {
                Err(unknown) => read.wrong.push(Wrong::Unknown(unknown)),
                Ok(key) => {
                    if let Err(why) = own.set(key, text, Scope::Service(service)) {
                        read.wrong.push(Wrong::Value { key, why });
                    }
                }
            }
        }
        read.overrides = (own != Overrides::default()).then(|| Box::new(own));
        read
    }
}

/// Whose settings they are: it says which namespace a name without one belongs to.
#[derive(Clone, Copy, Debug)]
pub enum Scope<'a> {
    /// Every Service's.
    Cluster,
    /// Those of a namespace's Services.
    Namespace(&'a str),
    /// A Service's own.
    Service(&'a ObjectName),
}

/// What somebody wants to be otherwise than the level below has it. None leaves it as it is.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Overrides {
    /// Which policy divides new flows.
    pub policy: Option<Kind>,
    /// Utilisation up to which flows stay; never 0.
    pub target: Option<Share>,
    /// What the requests need most.
    pub request_class: Option<Factors<Level>>,
    /// The Service that is needed to answer.
    pub relies_on: Option<ObjectName>,
    /// Most that may leave the node as long as it has endpoints.
    pub max_spill: Option<Share>,
    /// Round-trip time beyond which no flow goes; never 0.
    pub max_rtt: Option<Duration>,
}

impl Overrides {
    /// Takes one setting from its text, with white space around it or not.
    ///
    /// # Errors
    /// Why the text cannot be read; then everything is as it was.
    pub fn set(&mut self, key: Key, text: &str, scope: Scope<'_>) -> Result<(), WrongValue> {
        let text = text.trim();
        if text.len() > LONGEST_VALUE {
            return Err(WrongValue::TooLong(text.len()));
        }
        match key {
            Key::Policy => self.policy = Some(text.parse()?),
            Key::Target => {
                let target = share(text).filter(|target| *target > Share::NONE);
                self.target = Some(target.ok_or_else(|| WrongValue::Target(text.to_owned()))?);
            }
            Key::RequestClass => self.request_class = Some(text.parse()?),
            Key::ReliesOn => self.relies_on = Some(service(text, scope)?),
            Key::MaxSpill => self.max_spill = Some(share(text).ok_or_else(|| WrongValue::MaxSpill(text.to_owned()))?),
            Key::MaxRtt => self.max_rtt = Some(time(text).ok_or_else(|| WrongValue::MaxRtt(text.to_owned()))?),
        }
        Ok(())
    }
}

/// What is wanted of one Service.
#[derive(Clone, Debug, PartialEq)]
pub struct ServiceSettings {
    /// Which policy divides its new flows.
    pub policy: Kind,
    /// The Service that it needs to answer; never itself.
    pub relies_on: Option<ObjectName>,
    /// What the policy is to keep to. Nobody sets the interval of reports: it is the one that is built in.
    pub parameters: Parameters,
}

/// The settings of the cluster, as the configuration file has them.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Settings {
    /// For every Service.
    pub defaults: Overrides,
    /// For those of a namespace, by its name.
    pub namespaces: BTreeMap<Arc<str>, Overrides>,
}

impl Settings {
    /// What is in force for a Service with these annotations.
    #[must_use]
    pub fn of(&self, service: &ObjectName, annotated: Option<&Overrides>) -> ServiceSettings {
        // Whoever comes first decides.
        let levels = [annotated, self.namespaces.get(&service.namespace), Some(&self.defaults)];
        let built_in = Parameters::default();
        ServiceSettings {
            policy: first(levels, |level| level.policy).unwrap_or_default(),
            // A namespace whose Services all rely on one of them: that one relies on nobody.
            relies_on: first(levels, |level| level.relies_on.clone()).filter(|other| other != service),
            parameters: Parameters {
                target: first(levels, |level| level.target).or(built_in.target),
                max_spill: first(levels, |level| level.max_spill).unwrap_or(built_in.max_spill),
                max_rtt: first(levels, |level| level.max_rtt).or(built_in.max_rtt),
                request_class: first(levels, |level| level.request_class).unwrap_or(built_in.request_class),
                report_interval: built_in.report_interval,
            },
        }
    }
}

fn first<T>(levels: [Option<&Overrides>; 3], field: impl Fn(&Overrides) -> Option<T>) -> Option<T> {
    levels.into_iter().flatten().find_map(field)
}

/// Sharper than what a source of signals may claim: nobody has to round what they write.
fn share(text: &str) -> Option<Share> {
    let number: f64 = text.parse().ok()?;
    (0.0..=1.0).contains(&number).then(|| Share::clamped(number))
}

fn time(text: &str) -> Option<Duration> {
    let time = text.parse::<SignedDuration>().ok()?;
    Duration::try_from(time).ok().filter(|time| !time.is_zero())
}

fn service(text: &str, scope: Scope<'_>) -> Result<ObjectName, WrongValue> {
    let (namespace, name) = match (text.split_once('/'), scope) {
        (Some(both), _) => both,
        (None, Scope::Service(owner)) => (&*owner.namespace, text),
        (None, Scope::Namespace(namespace)) => (namespace, text),
        (None, Scope::Cluster) => return Err(WrongValue::NoNamespace(text.to_owned())),
    };
    if !is_label(namespace) || !is_label(name) {
        return Err(WrongValue::ReliesOn(text.to_owned()));
    }
    match scope {
        Scope::Service(owner) if *owner.namespace == *namespace && *owner.name == *name => Err(WrongValue::Itself),
        Scope::Service(_) | Scope::Namespace(_) | Scope::Cluster => Ok(ObjectName::new(namespace, name)),
    }
}

fn is_label(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=LONGEST_LABEL).contains(&text.len()) && text.bytes().all(allowed)
}
