//! One message of KV events: what a pod has put into its cache and taken out of it.
//!
//! vLLM and SGLang publish these as msgpack: an array of a time, a list of events and perhaps a rank. An event is, by
//! the release, a tagged array without its trailing defaults, or a map with a `type`. A hash is an unsigned number, a
//! signed one of the same bits, or the bytes of a digest; what is kept is 64 bits that tell the blocks of one pod
//! apart.
//!
//! Tokens, keys and whatever else is not needed is passed over, and so are kinds of events and fields that
//! are not known. Nothing is allocated for a length that is only claimed; what is made of a message is some 16 times as
//! large at most.

use std::fmt;

use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess,
    Visitor,
};

/// What happened in a pod's cache in one step of its engine.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Batch {
    /// In the order in which it happened.
    pub events: Vec<Event>,
    /// The data-parallel rank that it happened in; 0 where that is not told.
    pub rank: u32,
    /// Events of a kind that is not known.
    pub unknown: usize,
}

/// A change of a pod's cache.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Event {
    /// Blocks came in.
    Stored(Stored),
    /// Blocks went.
    Removed(Removed),
    /// All went.
    Cleared,
}

/// Blocks that came in, one behind the other.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Stored {
    /// The blocks, by what stands for all tokens up to their ends.
    pub hashes: Vec<u64>,
    /// The block ahead of the first; none when that is the first of a prompt.
    pub parent: Option<u64>,
    /// Tokens in a block.
    pub block_size: u32,
    /// Which part of the cache.
    pub place: Place,
    /// Whether a prompt's block is of use as long as it is here. It is not in layers that see a window only, or keep a
    /// state instead of keys and values.
    pub is_whole: bool,
}

/// Blocks that went.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Removed {
    /// The blocks.
    pub hashes: Vec<u64>,
    /// Which part of the cache.
    pub place: Place,
}

/// A part of a pod's cache.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Place {
    /// Whether it is the GPU's own memory; false for the host's memory, disks and other machines.
    pub is_local_gpu: bool,
    /// The group of layers; 0 where there is one for all.
    pub group: u32,
}

/// The message is not what vLLM or SGLang send.
#[derive(Debug, thiserror::Error)]
#[error("not a batch of KV events: {0}")]
pub struct NotEvents(#[from] rmp_serde::decode::Error);

impl Batch {
    /// Reads the payload of a message.
    ///
    /// # Errors
    /// [`NotEvents`] for anything but msgpack of the form above. What was read so far is of no use then.
    pub fn read(payload: &[u8]) -> Result<Self, NotEvents> {
        let mut reader = rmp_serde::Deserializer::from_read_ref(payload);
        reader.set_max_depth(MAX_DEPTH);
        Ok(Self::deserialize(&mut reader)?)
    }
}

impl<'de> Deserialize<'de> for Batch {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Outer;

        impl<'de> Visitor<'de> for Outer {
            type Value = Batch;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("an array of a time and events")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<Batch, A::Error> {
                let _time: Option<IgnoredAny> = parts.next_element()?;
                let events: Option<Events> = parts.next_element()?;
                let Events(batch) = events.ok_or_else(|| A::Error::invalid_length(1, &self))?;
                let rank: Option<Option<u32>> = parts.next_element()?;
                while parts.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Batch { rank: rank.flatten().unwrap_or_default(), ..batch })
            }
        }

        deserializer.deserialize_any(Outer)
    }
}

/// The list of events.
struct Events(Batch);

impl<'de> Deserialize<'de> for Events {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct List;

        impl<'de> Visitor<'de> for List {
            type Value = Events;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a list of events")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Events, A::Error> {
                let mut batch = Batch::default();
                while let Some(Item(event)) = items.next_element()? {
                    match event {
                        Some(event) => batch.events.push(event),
                        None => batch.unknown += 1,
                    }
                }
                Ok(Events(batch))
            }
        }

        deserializer.deserialize_any(List)
    }
}

/// An event, if it is of a kind that is known.
struct Item(Option<Event>);

impl<'de> Deserialize<'de> for Item {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Tagged;

        impl<'de> Visitor<'de> for Tagged {
            type Value = Item;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("an event, as a tagged array or map")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<Item, A::Error> {
                let mut fields = Fields::default();
                let mut names = [Field::Type].iter();
                while let Some(&name) = names.next() {
                    if parts.next_element_seed(Slot { fields: &mut fields, name })?.is_none() {
                        return fields.event().map(Item);
                    }
                    if name == Field::Type {
                        names = fields.order().iter();
                    }
                }
                while parts.next_element::<IgnoredAny>()?.is_some() {}
                fields.event().map(Item)
            }

            fn visit_map<A: MapAccess<'de>>(self, mut parts: A) -> Result<Item, A::Error> {
                let mut fields = Fields::default();
                while let Some(name) = parts.next_key()? {
                    parts.next_value_seed(Slot { fields: &mut fields, name })?;
                }
                fields.event().map(Item)
            }
        }

        deserializer.deserialize_any(Tagged)
    }
}

/// The kinds of events.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, serde::Deserialize)]
enum Kind {
    BlockStored,
    BlockRemoved,
    AllBlocksCleared,
    #[default]
    #[serde(other)]
    Unknown,
}

/// The fields of events.
#[derive(Clone, Copy, Debug, Eq, PartialEq, serde::Deserialize)]
#[serde(field_identifier, rename_all = "snake_case")]
enum Field {
    Type,
    BlockHashes,
    ParentBlockHash,
    BlockSize,
    Medium,
    GroupIdx,
    KvCacheSpecKind,
    Locality,
    #[serde(other)]
    Other,
}

/// What an event says.
#[derive(Debug, Default)]
struct Fields {
    kind: Kind,
    hashes: Vec<Hash>,
    parent: Option<Hash>,
    block_size: Option<u32>,
    is_elsewhere: bool,
    group: Option<u32>,
    is_partial: bool,
}

impl Fields {
    /// In what order an array has the fields behind its tag.
    fn order(&self) -> &'static [Field] {
        match self.kind {
            Kind::BlockStored => &STORED,
            Kind::BlockRemoved => &REMOVED,
            Kind::AllBlocksCleared | Kind::Unknown => &[],
        }
    }

    fn event<E: serde::de::Error>(self) -> Result<Option<Event>, E> {
        let hashes = || self.hashes.iter().map(|hash| hash.0).collect();
        let place =
            Place { is_local_gpu: !self.is_elsewhere, group: self.group.unwrap_or_default() };
        let event = match self.kind {
            Kind::BlockStored => {
                let block_size = self.block_size.filter(|size| *size > 0);
                Event::Stored(Stored {
                    hashes: hashes(),
                    parent: self.parent.map(|hash| hash.0),
                    block_size: block_size.ok_or_else(|| E::missing_field("block_size"))?,
                    place,
                    is_whole: !self.is_partial,
                })
            }
            Kind::BlockRemoved => Event::Removed(Removed { hashes: hashes(), place }),
            Kind::AllBlocksCleared => Event::Cleared,
            Kind::Unknown => return Ok(None),
        };
        Ok(Some(event))
    }
}

/// Reads the value of a field.
struct Slot<'a> {
    fields: &'a mut Fields,
    name: Field,
}

impl<'de> DeserializeSeed<'de> for Slot<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, value: D) -> Result<(), D::Error> {
        let Self { fields, name } = self;
        match name {
            Field::Type => fields.kind = Kind::deserialize(value)?,
            // May have anything here. In a map the kind comes first, as in all that has a tag.
            _ if fields.kind == Kind::Unknown => {
                IgnoredAny::deserialize(value)?;
            }
            Field::BlockHashes => fields.hashes = Vec::deserialize(value)?,
            Field::ParentBlockHash => fields.parent = Option::deserialize(value)?,
            Field::BlockSize => fields.block_size = Some(u32::deserialize(value)?),
            Field::Medium => {
                let medium: Option<&str> = Option::deserialize(value)?;
                fields.is_elsewhere |= medium.is_some_and(|medium| medium != "GPU");
            }
            Field::GroupIdx => fields.group = Option::deserialize(value)?,
            Field::KvCacheSpecKind => {
                let kind: Option<&str> = Option::deserialize(value)?;
                let kind = kind.unwrap_or_default();
                fields.is_partial = PARTIAL.iter().any(|word| kind.contains(word));
            }
            Field::Locality => {
                let locality: Option<&str> = Option::deserialize(value)?;
                fields.is_elsewhere |= locality == Some("REMOTE");
            }
            Field::Other => {
                IgnoredAny::deserialize(value)?;
            }
        }
        Ok(())
    }
}

/// A block's hash, as 64 bits.
#[derive(Clone, Copy, Debug)]
struct Hash(u64);

impl<'de> Deserialize<'de> for Hash {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Bits;

        impl Visitor<'_> for Bits {
            type Value = Hash;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a hash, as a number or bytes")
            }

            fn visit_u64<E>(self, hash: u64) -> Result<Hash, E> {
                Ok(Hash(hash))
            }

            fn visit_i64<E>(self, hash: i64) -> Result<Hash, E> {
                Ok(Hash(hash.cast_unsigned()))
            }

            /// The last 8 bytes: what vLLM sends of a digest when it sends a number.
            fn visit_bytes<E: serde::de::Error>(self, hash: &[u8]) -> Result<Hash, E> {
                let last = hash.last_chunk().ok_or_else(|| E::invalid_length(hash.len(), &self))?;
                Ok(Hash(u64::from_be_bytes(*last)))
            }
        }

        deserializer.deserialize_any(Bits)
    }
}

/// The fields of a stored block behind the tag, where an event is an array.
const STORED: [Field; 12] = [
    Field::BlockHashes,
    Field::ParentBlockHash,
    // The tokens.
    Field::Other,
    Field::BlockSize,
    // The adapter's number.
    Field::Other,
    Field::Medium,
    // The adapter's name, and what else made the hashes.
    Field::Other,
    Field::Other,
    Field::GroupIdx,
    Field::KvCacheSpecKind,
    // The window.
    Field::Other,
    Field::Locality,
];

/// The fields of a removed block behind the tag, where an event is an array.
const REMOVED: [Field; 4] = [Field::BlockHashes, Field::Medium, Field::GroupIdx, Field::Locality];

/// In the name of a kind of layers: that a prompt's blocks are of use to them for a while only, or are no prompt's.
const PARTIAL: [&str; 5] = ["chunked", "cross", "encoder", "mamba", "sliding"];

/// How deep values may lie in each other; what is known lies 5 deep.
const MAX_DEPTH: usize = 32;

#[cfg(test)]
mod tests;
