#include "preflight/print.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/text.h"
#include "preflight/judge_priv.h"

/* ---- cells ---- */

static bool is_outlier(const struct preflight_findings *f, uint32_t task)
{
    for (uint32_t i = 0; i < f->n; i++)
        if (f->at[i].severity == PREFLIGHT_FAULT && f->at[i].task == task &&
            f->at[i].other == PREFLIGHT_NO_TASK)
            return true;
    return false;
}

static void print_time(char *out, size_t n, double us)
{
    snprintf(out, n,
             us < 1e3   ? "%.0fus"
             : us < 1e5 ? "%.3gms"
                        : "%.0fms",
             us < 1e3 ? us : us / 1e3);
}

static void print_rate(char *out, size_t n, uint64_t rate)
{
    double bits = 8 * (double)rate;

    if (rate == 0)
        snprintf(out, n, "-");
    else if (bits >= 1e9)
        snprintf(out, n, "%.3gG", bits / 1e9);
    else
        snprintf(out, n, "%.3gM", bits / 1e6);
}

static const char *const failures[PREFLIGHT_REACHES] = {
    "untested", "ok", "REFUSED", "SILENT", "NO NAME", "FOREIGN", "DENIED", "OTHER", "LOST",
};

static void print_cell(const struct preflight_entry *e, char *out, size_t n)
{
    char time[24], rate[24];

    if (e == NULL)
        snprintf(out, n, "no row");
    else if (e->control != PREFLIGHT_REACHED)
        snprintf(out, n, "%s", failures[e->control]);
    else if (e->data != PREFLIGHT_REACHED)
        snprintf(out, n, "data %s", failures[e->data]);
    else if (e->large == PREFLIGHT_BAD)
        snprintf(out, n, "MTU LOSS");
    else {
        print_time(time, sizeof(time), e->rtt_us);
        print_rate(rate, sizeof(rate), e->rate);
        snprintf(out, n, "%s %s", time, rate);
    }
}

static void print_offset(int64_t us, char *out, size_t n)
{
    if (us == INT64_MIN)
        snprintf(out, n, "-");
    else if (us > 9999999 || us < -9999999)
        snprintf(out, n, "%+.0fs", (double)us / 1e6);
    else
        snprintf(out, n, "%+.1fms", (double)us / 1e3);
}

/* Returns "ok", "FAULT" or "-" for what the others see of the task's file and lock. */
static const char *storage_state(const struct preflight_table *t, uint32_t task)
{
    bool is_tested = false;

    if (t->rows[task].present && t->rows[task].facts.storage_fault[0] != '\0')
        return "FAULT";
    for (uint32_t i = 0; i < t->world; i++) {
        const struct preflight_entry *e = i != task ? judge_entry(t, i, task) : NULL;

        if (e != NULL && (e->storage == PREFLIGHT_BAD || e->lock == PREFLIGHT_BAD))
            return "UNSEEN";
        is_tested = is_tested || (e != NULL && e->storage == PREFLIGHT_GOOD);
    }
    return is_tested ? "ok" : "-";
}

static uint32_t smallest_mtu(const struct preflight_table *t, uint32_t task)
{
    uint32_t mtu = 0;

    for (uint32_t i = 0; i < t->world; i++) {
        const struct preflight_entry *e = judge_entry(t, task, i);

        if (e != NULL && e->mtu > 0 && (mtu == 0 || e->mtu < mtu))
            mtu = e->mtu;
    }
    return mtu;
}

/* In place of a cell for each pair: the slowest pair of the task, and the number of failures. */
static void print_summary(const struct preflight_table *t, uint32_t task, struct buf *out)
{
    uint32_t failed = 0, us = 0;
    uint64_t rate = 0;
    char time[24], lowest[24];

    for (uint32_t i = 0; i < t->world; i++) {
        const struct preflight_entry *e = i != task ? judge_entry(t, task, i) : NULL;

        if (e == NULL)
            continue;
        failed += e->control != PREFLIGHT_REACHED || e->data != PREFLIGHT_REACHED ||
                  e->large == PREFLIGHT_BAD;
        us = e->rtt_us > us ? e->rtt_us : us;
        rate = e->rate > 0 && (rate == 0 || e->rate < rate) ? e->rate : rate;
    }
    print_time(time, sizeof(time), us);
    print_rate(lowest, sizeof(lowest), rate);
    buf_printf(out, " %12s %10s %6u", time, lowest, failed);
}

static void print_head(const struct preflight_table *t, struct buf *out)
{
    buf_printf(out, "%-14s", "from \\ to");
    for (uint32_t i = 0; t->world <= PRINT_CELLS && i < t->world; i++)
        buf_printf(out, " %13s", t->tasks[i].name);
    if (t->world > PRINT_CELLS)
        buf_printf(out, " %12s %10s %6s", "worst trip", "worst bit/s", "failed");
    buf_printf(out, " %9s %6s %8s  %s\n", "clock", "MTU", "storage", "devices");
}

void print_matrix(const struct preflight_table *t, const struct preflight_findings *f,
                  struct buf *out)
{
    int64_t *clocks = calloc(t->world + 1u, sizeof(*clocks));

    if (clocks == NULL || judge_clocks(t, clocks, NULL) < 0) {
        free(clocks);
        out->failed = true;
        return;
    }
    buf_printf(out, "round trip and bit/s of every direction:\n");
    print_head(t, out);
    for (uint32_t i = 0; i < t->world; i++) {
        const struct preflight_row *row = &t->rows[i];
        char cell[40], clock[24];

        buf_printf(out, "%-14s", t->tasks[i].name);
        for (uint32_t k = 0; t->world <= PRINT_CELLS && k < t->world; k++) {
            print_cell(judge_entry(t, i, k), cell, sizeof(cell));
            buf_printf(out, " %13s", i == k ? "." : cell);
        }
        if (t->world > PRINT_CELLS)
            print_summary(t, i, out);
        print_offset(clocks[i], clock, sizeof(clock));
        buf_printf(out, " %9s %6u %8s  %s%s\n", clock, smallest_mtu(t, i), storage_state(t, i),
                   row->present ? row->facts.devices : "absent",
                   is_outlier(f, i) ? "  <-- outlier" : "");
    }
    free(clocks);
}

void print_verdict(const struct preflight_table *t, const struct preflight_findings *f,
                   struct buf *out)
{
    uint32_t faults = 0;

    for (uint32_t i = 0; i < f->n; i++) {
        const struct preflight_finding *x = &f->at[i];

        faults += x->severity == PREFLIGHT_FAULT;
        buf_printf(out, "%s", x->severity == PREFLIGHT_FAULT ? "FAULT" : "note");
        if (x->task != PREFLIGHT_NO_TASK)
            buf_printf(out, " %s", t->tasks[x->task].name);
        if (x->other != PREFLIGHT_NO_TASK)
            buf_printf(out, " and %s", t->tasks[x->other].name);
        buf_printf(out, ": %s; %s\n", x->text, x->remedy);
    }
    if (faults == 0)
        buf_printf(out, "verdict: no outlier among %u tasks\n", t->world);
    else
        buf_printf(out, "verdict: %u fault%s among %u tasks\n", faults, faults == 1 ? "" : "s",
                   t->world);
}

/* ---- JSON ---- */

static void key_text(struct buf *out, const char *key, const char *value)
{
    buf_printf(out, ", \"%s\": ", key);
    buf_json(out, value);
}

static const char *const reach_words[PREFLIGHT_REACHES] = {
    "untested", "reached", "refused", "silent", "unresolved", "foreign", "denied", "mistaken", "lost",
};
static const char *const check_words[PREFLIGHT_CHECKS] = { "unchecked", "good", "bad" };

static void json_entry(const struct preflight_entry *e, struct buf *out)
{
    buf_printf(out, "{\"control\": \"%s\", \"data\": \"%s\", \"connected_back\": %s, \"large_packets\": \"%s\", "
                    "\"storage\": \"%s\", \"lock\": \"%s\", \"reverse_name\": \"%s\"",
               reach_words[e->control], reach_words[e->data], e->in != 0 ? "true" : "false", check_words[e->large],
               check_words[e->storage], check_words[e->lock], check_words[e->reverse]);
    if (e->rtt_us > 0)
        buf_printf(out, ", \"round_trip_us\": %u, \"clock_ahead_us\": %" PRId64, e->rtt_us,
                   e->skew_us);
    if (e->rate > 0)
        buf_printf(out, ", \"bytes_per_second\": %" PRIu64, e->rate);
    if (e->mtu > 0)
        buf_printf(out, ", \"mtu\": %u", e->mtu);
    buf_str(out, "}");
}

static void json_task(const struct preflight_table *t, uint32_t i, struct buf *out)
{
    const struct preflight_row *row = &t->rows[i];
    const struct preflight_facts *f = &row->facts;

    buf_printf(out, "    {\"rank\": %u", i);
    key_text(out, "name", t->tasks[i].name);
    key_text(out, "address", t->tasks[i].address);
    buf_printf(out, ", \"present\": %s", row->present ? "true" : "false");
    if (row->present) {
        key_text(out, "version", f->version);
        key_text(out, "devices", f->devices);
        key_text(out, "kernels", f->kernels);
        key_text(out, "cluster", f->cluster);
        key_text(out, "job", f->job);
        buf_printf(out,
                   ", \"data_port\": %u, \"storage_sync_us\": %u, \"open_ms\": %" PRIu64
                   ",\n     \"to\": [",
                   f->data_port, f->sync_us, f->open_ms);
        for (uint32_t k = 0; k < t->world; k++) {
            buf_str(out, k > 0 ? ",\n            " : "");
            if (k == i)
                buf_str(out, "null");
            else
                json_entry(&row->entries[k], out);
        }
        buf_str(out, "]");
    }
    buf_str(out, "}");
}

void print_json(const struct preflight_table *t, const struct preflight_findings *f, uint32_t self,
                struct buf *out)
{
    struct print_estimate estimate;
    bool has_fault = false;

    buf_printf(out, "{\"self\": %u,\n  \"tasks\": [\n", self);
    for (uint32_t i = 0; i < t->world; i++) {
        json_task(t, i, out);
        buf_str(out, i + 1 < t->world ? ",\n" : "\n");
    }
    buf_str(out, "  ],\n  \"findings\": [");
    for (uint32_t i = 0; i < f->n; i++) {
        const struct preflight_finding *x = &f->at[i];

        has_fault = has_fault || x->severity == PREFLIGHT_FAULT;
        buf_printf(out, "%s\n    {\"severity\": \"%s\"", i > 0 ? "," : "",
                   x->severity == PREFLIGHT_FAULT ? "fault" : "note");
        key_text(out, "what", x->what);
        if (x->task != PREFLIGHT_NO_TASK)
            buf_printf(out, ", \"rank\": %u", x->task);
        if (x->other != PREFLIGHT_NO_TASK)
            buf_printf(out, ", \"other\": %u", x->other);
        key_text(out, "text", x->text);
        key_text(out, "remedy", x->remedy);
        buf_str(out, "}");
    }
    buf_str(out, f->n > 0 ? "\n  ],\n" : "],\n");
    if (print_estimate(t, &estimate))
        buf_printf(
            out,
            "  \"seconds_to_first_step\": {\"open\": %.3f, \"transfer\": %.3f, \"reduce\": %.3f},\n",
            estimate.open, estimate.transfer, estimate.reduce);
    buf_printf(out, "  \"good\": %s}\n", has_fault ? "false" : "true");
}
