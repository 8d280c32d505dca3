//! What was measured, as a table or as JSON.

use std::fmt::Write;

use anyhow::Result;
use einmal_bench::{Spread, rate};
use serde_json::{Value, json};

use crate::Args;
use crate::cell::{Cell, Measured};

/// One cell in all rounds.
pub(crate) struct Row {
    pub(crate) cell: Cell,
    /// It is the other build's.
    pub(crate) other: bool,
    pub(crate) rounds: Vec<Measured>,
}

impl Row {
    pub(crate) const fn new(cell: Cell, other: bool) -> Self {
        Self { cell, other, rounds: Vec::new() }
    }

    pub(crate) fn name(&self) -> String {
        format!("{}{}", self.cell.what(), if self.other { ", other build" } else { "" })
    }

    /// Of each round; `None` where it is void.
    fn rates(&self, messages: u64) -> impl Iterator<Item = Option<f64>> {
        self.rounds.iter().map(move |one| (!one.is_void(messages)).then(|| rate(messages, one.seconds)))
    }

    fn valid(&self, messages: u64) -> impl Iterator<Item = &Measured> {
        self.rounds.iter().filter(move |one| !one.is_void(messages))
    }

    fn ratios(&self, to: &Self, messages: u64) -> Option<Spread> {
        let both = self.rates(messages).zip(to.rates(messages));
        Spread::of(both.filter_map(|(this, to)| Some(this? / to?)))
    }
}

pub(crate) struct Report {
    args: Args,
    rows: Vec<Row>,
}

/// What is told of one row.
struct Summary {
    rate: Option<Spread>,
    to_bare: Option<Spread>,
    to_other: Option<Spread>,
    cpu_micros: Option<Spread>,
    rss_mib: Option<Spread>,
    void: usize,
}

impl Report {
    pub(crate) fn new(args: &Args, rows: Vec<Row>) -> Self {
        Self { args: args.clone(), rows }
    }

    pub(crate) fn text(&self) -> Result<String> {
        if self.args.json { Ok(format!("{}\n", serde_json::to_string(&self.json())?)) } else { self.table() }
    }

    #[allow(clippy::cast_precision_loss, reason = "for people")]
    fn summary(&self, row: &Row) -> Summary {
        let messages = self.args.messages;
        let bare = self.rows.iter().find(|other| other.cell == Cell::Bare);
        let other = self.rows.iter().find(|other| other.cell == row.cell && other.other && !row.other);
        let mib = |one: &Measured| Some(one.rss_growth_kib? as f64 / 1024.0);
        let micros = |one: &Measured| Some(one.cpu_seconds? * 1e6 / messages as f64);
        Summary {
            rate: Spread::of(row.rates(messages).flatten()),
            to_bare: bare.and_then(|bare| row.ratios(bare, messages)),
            to_other: other.and_then(|other| row.ratios(other, messages)),
            cpu_micros: Spread::of(row.valid(messages).filter_map(micros)),
            rss_mib: Spread::of(row.valid(messages).filter_map(mib)),
            void: row.rounds.len() - row.valid(messages).count(),
        }
    }

    fn table(&self) -> Result<String> {
        let Args { messages, size, partitions, rounds, compression, .. } = &self.args;
        let mut text = format!(
            "{messages} messages of {size} bytes, {partitions} partitions, rounds {rounds}, compression {compression}\n\n"
        );
        text +=
            "| what | durable against | msg/s: median [lowest to highest] | ratio to bare: median [range] | ";
        text += "CPU µs a message | peak memory, MiB |\n|---|---|---|---|---|---|\n";
        let shown = |spread: Option<Spread>, digits| spread.map_or("–".to_owned(), |it| it.text(digits));
        for row in &self.rows {
            let Summary { rate, to_bare, cpu_micros, rss_mib, void, .. } = self.summary(row);
            let void = if void > 0 { format!(" ({void} VOID)") } else { String::new() };
            let (name, durability) = (row.name(), row.cell.durability());
            let (rate, to_bare) = (shown(rate, 0), shown(to_bare, 2));
            let (cpu, rss) = (shown(cpu_micros, 1), shown(rss_mib, 0));
            writeln!(text, "| {name}{void} | {durability} | {rate} | {to_bare} | {cpu} | {rss} |")?;
        }
        for row in &self.rows {
            if let Some(ratio) = self.summary(row).to_other {
                let (name, durability) = (row.name(), row.cell.durability());
                writeln!(text, "\nthis build to the other, {name}, {durability}: {}", ratio.text(2))?;
            }
        }
        Ok(text)
    }

    fn json(&self) -> Value {
        let Args { messages, size, partitions, rounds, warmup, compression, .. } = &self.args;
        let spread = |spread: Option<Spread>| {
            spread.map(|it| json!({ "median": it.median, "lowest": it.lowest, "highest": it.highest }))
        };
        let row = |row: &Row| {
            let summary = self.summary(row);
            json!({
                "cell": row.cell.name(),
                "other_build": row.other,
                "durable_against": row.cell.durability(),
                "void_rounds": summary.void,
                "msgs_per_s": spread(summary.rate),
                "ratio_to_bare": spread(summary.to_bare),
                "ratio_to_other_build": spread(summary.to_other),
                "cpu_us_per_message": spread(summary.cpu_micros),
                "rss_growth_mib": spread(summary.rss_mib),
                "rounds": &row.rounds,
            })
        };
        json!({
            "messages": messages,
            "size": size,
            "partitions": partitions,
            "rounds": rounds,
            "warmup": warmup,
            "compression": compression,
            "cells": self.rows.iter().map(row).collect::<Vec<_>>(),
        })
    }
}
