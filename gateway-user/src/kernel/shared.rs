//! An array map that lies in the daemon's memory as well as in the programs'.
//!
//! The other side writes at any time, so nothing here is a reference into it: values are read and written by
//! copies of aligned words.

use std::marker::PhantomData;
use std::num::NonZero;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use aya::Pod;
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};

/// The values of an array map that was made with BPF_F_MMAPABLE.
pub(super) struct SharedArray<T> {
    memory: NonNull<u64>,
    bytes: NonZero<usize>,
    count: u32,
    value: PhantomData<T>,
}

// SAFETY: the memory stays mapped as long as the value lives, and is only accessed by atomic words.
unsafe impl<T> Send for SharedArray<T> {}
// SAFETY: as for `Send`.
unsafe impl<T> Sync for SharedArray<T> {}

impl<T: Pod> SharedArray<T> {
    /// Maps all `count` values of a map.
    ///
    /// # Errors
    /// The map was not made for that, or there is no memory.
    pub(super) fn new(map: impl AsFd, count: u32) -> nix::Result<Self> {
        const { assert!(size_of::<T>().is_multiple_of(8) && align_of::<T>().is_multiple_of(8)) };
        let bytes = NonZero::new(size_of::<T>() * count as usize).ok_or(nix::Error::EINVAL)?;
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping, at a place that the kernel chooses.
        let memory = unsafe { mmap(None, bytes, access, MapFlags::MAP_SHARED, map, 0) }?;
        Ok(Self { memory: memory.cast(), bytes, count, value: PhantomData })
    }

    /// A copy of a value; its words may be of different moments.
    pub(super) fn read(&self, index: u32) -> T {
        let mut value = std::mem::MaybeUninit::<T>::uninit();
        for word in 0..size_of::<T>() / 8 {
            let read = self.word(index, word).load(Ordering::Acquire);
            // SAFETY: within the value, which is a whole number of aligned words.
            unsafe { value.as_mut_ptr().cast::<u64>().add(word).write(read) };
        }
        // SAFETY: all of it was written, and `Pod` takes any bytes.
        unsafe { value.assume_init() }
    }

    /// Writes a value word by word, the last one last.
    pub(super) fn write(&self, index: u32, value: T) {
        for word in 0..size_of::<T>() / 8 {
            // SAFETY: within the value, which is a whole number of aligned words without padding that
            // matters.
            let word_value = unsafe { (&raw const value).cast::<u64>().add(word).read_unaligned() };
            self.word(index, word).store(word_value, Ordering::Release);
        }
    }

    /// Writes a value's first words, the last one last.
    pub(super) fn write_words(&self, index: u32, words: &[u64]) {
        for (word, value) in words.iter().enumerate() {
            self.word(index, word).store(*value, Ordering::Release);
        }
    }

    /// A word of a value. An index that is out of range is taken for the last one.
    fn word(&self, index: u32, word: usize) -> &AtomicU64 {
        let words = size_of::<T>() / 8;
        let index = index.min(self.count.saturating_sub(1)) as usize;
        // SAFETY: within the mapping by the bounds here, which lives as long as `self`.
        unsafe {
            AtomicU64::from_ptr(self.memory.as_ptr().add(index * words + word.min(words - 1)))
        }
    }
}

impl<T> Drop for SharedArray<T> {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`, to which nothing refers any more.
        let _ = unsafe { munmap(self.memory.cast(), self.bytes.get()) };
    }
}
