//! Tokenizers of Hugging Face.

use super::Folder;
use trefoil_nn::NnError;
use trefoil_nn::data::text::{Encoding, Tokenizer};

#[test]
fn tokenizers_of_hugging_face() {
    let folder = Folder::new("tokenizer");
    let path = folder.at("tokenizer.json");
    let text = r#"{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": {"type": "Lowercase"},
        "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null, "decoder": null,
        "model": {"type": "WordLevel", "vocab": {"[UNK]": 0, "hello": 1, "world": 2}, "unk_token": "[UNK]"}}"#;
    std::fs::write(&path, text).unwrap();
    let t = Tokenizer::open(&path).unwrap();
    assert_eq!((t.encode("Hello big world").unwrap(), t.size()), (vec![1, 0, 2], 3));
    assert_eq!(t.decode(&[1, 2]).unwrap(), "hello world");
    std::fs::write(&path, "{}").unwrap();
    assert!(matches!(Tokenizer::open(&path), Err(NnError::Data { .. })));
}
