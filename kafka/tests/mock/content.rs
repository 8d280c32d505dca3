//! What is in a message.
