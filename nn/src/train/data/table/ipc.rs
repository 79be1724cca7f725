//! The IPC format of Arrow: messages, one after the other in a stream, or at the places that the footer of a file names.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_buffer::Buffer;
use arrow_ipc::convert::try_fb_to_schema;
use arrow_ipc::reader::FileDecoder;
use arrow_ipc::{Block, Message, MessageHeader, MetadataVersion, root_as_footer, root_as_message};
use arrow_schema::{ArrowError, SchemaRef};

use crate::core::limits;

type Result<T> = std::result::Result<T, ArrowError>;

/// What messages begin with, before their length; those of old streams begin with that.
const MARK: [u8; 4] = [0xff; 4];
/// What files begin and end with.
const MAGIC: &[u8; 6] = b"ARROW1";

fn damaged<T>(what: impl ToString) -> Result<T> {
    Err(ArrowError::IpcError(what.to_string()))
}

/// A file or stream, read message by message.
pub(super) struct Ipc {
    file: BufReader<File>,
    /// Where the messages of a file are; a stream says it as it goes.
    places: Option<VecDeque<Block>>,
    decoder: FileDecoder,
    pub(super) schema: SchemaRef,
}

impl Ipc {
    /// Opens a file, which begins with `ARROW1`, or a stream. Errors: of the file; what is no schema.
    pub(super) fn open(file: File, is_file: bool) -> Result<Self> {
        let mut file = BufReader::new(file);
        let (places, schema, version) = if is_file { footer(&mut file)? } else { beginning(&mut file)? };
        Ok(Ipc { file, places, decoder: FileDecoder::new(schema.clone(), version), schema })
    }

    /// The next batch of rows.
    pub(super) fn next(&mut self) -> Result<Option<RecordBatch>> {
        loop {
            let message = match &mut self.places {
                None => next_message(&mut self.file)?,
                Some(places) => places.pop_front().map(|at| message_at(&mut self.file, at)).transpose()?,
            };
            let Some((place, bytes)) = message else { return Ok(None) };
            let kind = check(&place, &bytes)?;
            let bytes = Buffer::from_vec(bytes);
            match kind {
                MessageHeader::DictionaryBatch => self.decoder.read_dictionary(&place, &bytes)?,
                MessageHeader::RecordBatch => return self.decoder.read_record_batch(&place, &bytes),
                other => return damaged(format!("a message of {other:?} among batches")),
            }
        }
    }
}

/// Where messages are, what the columns are, and the version of the format.
type Start = (Option<VecDeque<Block>>, SchemaRef, MetadataVersion);

/// What the end of a file says: magic, padding, messages, the footer, its length, magic.
fn footer(file: &mut BufReader<File>) -> Result<Start> {
    let mut end = vec![];
    let size = file.seek(SeekFrom::End(0))?;
    let at = size.saturating_sub(10);
    file.seek(SeekFrom::Start(at))?;
    read(file, size - at, &mut end)?;
    let Some([a, b, c, d]) = end.strip_suffix(MAGIC) else { return damaged("no footer at its end") };
    let length = u64::from(u32::from_le_bytes([*a, *b, *c, *d]));
    let Some(at) = at.checked_sub(length) else { return damaged("a footer longer than the file") };
    let mut bytes = vec![];
    file.seek(SeekFrom::Start(at))?;
    read(file, length, &mut bytes)?;
    let footer = root_as_footer(&bytes).or_else(damaged)?;
    let Some(schema) = footer.schema() else { return damaged("a footer without a schema") };
    let dictionaries = footer.dictionaries().into_iter().flatten();
    let places = dictionaries.chain(footer.recordBatches().into_iter().flatten()).copied().collect();
    Ok((Some(places), Arc::new(try_fb_to_schema(schema)?), footer.version()))
}

/// What the first message of a stream says.
fn beginning(file: &mut BufReader<File>) -> Result<Start> {
    let Some((place, bytes)) = next_message(file)? else { return damaged("no messages") };
    let message = header(&place, &bytes)?;
    match message.header_as_schema() {
        Some(schema) => Ok((None, Arc::new(try_fb_to_schema(schema)?), message.version())),
        None => damaged("a stream that does not begin with a schema"),
    }
}

/// Appends `n` bytes. Memory grows with what is read, whatever `n` is.
fn read(file: &mut BufReader<File>, n: u64, bytes: &mut Vec<u8>) -> Result<()> {
    let got = file.take(n).read_to_end(bytes)?;
    if got as u64 == n { Ok(()) } else { damaged(format!("its end after {got} of {n} bytes")) }
}

/// The next message of a stream, from its mark on.
fn next_message(file: &mut BufReader<File>) -> Result<Option<(Block, Vec<u8>)>> {
    let mut bytes = vec![];
    file.take(4).read_to_end(&mut bytes)?;
    if bytes.is_empty() {
        return Ok(None);
    }
    if bytes == MARK {
        read(file, 4, &mut bytes)?;
    }
    let Some(length) = bytes.last_chunk().map(|b| u32::from_le_bytes(*b)) else {
        return damaged("its end within a length");
    };
    if length == 0 {
        return Ok(None);
    }
    read(file, length.into(), &mut bytes)?;
    let Ok(start) = i32::try_from(bytes.len()) else { return damaged("a header of more than 2 GiB") };
    let body = header(&Block::new(0, start, 0), &bytes)?.bodyLength();
    let Ok(length) = u64::try_from(body) else { return damaged("a message of a negative length") };
    read(file, length, &mut bytes)?;
    Ok(Some((Block::new(0, start, body), bytes)))
}

/// The message of a file at a place, from its mark on.
fn message_at(file: &mut BufReader<File>, at: Block) -> Result<(Block, Vec<u8>)> {
    let sizes = [at.offset(), at.metaDataLength().into(), at.bodyLength()].map(u64::try_from);
    let [Ok(offset), Ok(start), Ok(body)] = sizes else { return damaged("a message of a negative length") };
    let mut bytes = vec![];
    file.seek(SeekFrom::Start(offset))?;
    read(file, start.saturating_add(body), &mut bytes)?;
    Ok((at, bytes))
}

/// The header of a message.
fn header<'a>(place: &Block, bytes: &'a [u8]) -> Result<Message<'a>> {
    let start = if bytes.starts_with(&MARK) { 8 } else { 4 };
    match bytes.get(start..place.metaDataLength().max(0) as usize) {
        Some(header) => root_as_message(header).or_else(damaged),
        None => damaged("a message without a header"),
    }
}

/// What a message is. Errors: columns beyond it; compressed ones that ask for more memory than there is, which would end the process when they are
/// unpacked.
fn check(place: &Block, bytes: &[u8]) -> Result<MessageHeader> {
    let message = header(place, bytes)?;
    let dictionary = || message.header_as_dictionary_batch().and_then(|d| d.data());
    let batch = message.header_as_record_batch().or_else(dictionary);
    let body = &bytes[place.metaDataLength().max(0) as usize..];
    let compressed = batch.is_some_and(|b| b.compression().is_some());
    for buffer in batch.and_then(|b| b.buffers()).into_iter().flatten() {
        let (offset, length) = (usize::try_from(buffer.offset()), usize::try_from(buffer.length()));
        let range = offset.ok().zip(length.ok()).and_then(|(at, n)| body.get(at..)?.get(..n));
        let Some(column) = range else { return damaged("a column beyond its message") };
        // The length of what is unpacked; a negative one where nothing is packed.
        let unpacked = column.first_chunk().filter(|_| compressed).map_or(-1, |b| i64::from_le_bytes(*b));
        if let Ok(n) = usize::try_from(unpacked)
            && limits::reserve(&mut Vec::<u8>::new(), n).is_err()
        {
            return damaged(format!("a column of {n} bytes, for which there is no memory"));
        }
    }
    Ok(message.header_type())
}
