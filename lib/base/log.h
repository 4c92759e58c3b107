/* log.h - writes one line of text, or one JSON object, per event to stderr.
 *
 * Only daemon/ logs; a library returns its error or reports through a callback. The text format is
 * `2026-01-31T12:00:00.123Z INFO  worker 1: message`; with LOG_JSON every record is one object
 * {"time":..., "level":..., "event":..., "message":..., fields...}. A progress line on a terminal
 * (log_progress) is erased before a record and redrawn after it.
 *
 * If stderr is the journal of systemd (log_journal.h), a record of the text format is a journal
 * entry with priority and fields; a line that is written nevertheless, such as a JSON object, begins
 * with its priority ("<4>"), which the journal removes.
 *
 * A record is one write(2), so lines of several processes do not mix. No call waits for stderr: up
 * to 256 KiB of records are queued while stderr is blocked; further records are dropped and
 * counted. Threads: any. */
#ifndef BASE_LOG_H
#define BASE_LOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR };
enum log_format { LOG_TEXT, LOG_JSON };

/* A named value of a record. Build with the LOG_* macros below. */
struct log_field {
    const char *key;
    enum { LOG_F_STR, LOG_F_I64, LOG_F_U64, LOG_F_F64, LOG_F_F32, LOG_F_BOOL, LOG_F_JSON } type;
    union {
        const char *str; /* borrowed; LOG_F_JSON: JSON text, inserted unchanged; NULL: null */
        int64_t i64;
        uint64_t u64;
        double f64; /* printed as the shortest decimal that parses to the same double */
        float f32;  /* printed as the shortest decimal that parses to the same float */
        bool boolean;
    } as;
};
#define LOG_STR(k_, v_) { .key = (k_), .type = LOG_F_STR, .as.str = (v_) }
#define LOG_I64(k_, v_) { .key = (k_), .type = LOG_F_I64, .as.i64 = (v_) }
#define LOG_U64(k_, v_) { .key = (k_), .type = LOG_F_U64, .as.u64 = (v_) }
#define LOG_F64(k_, v_) { .key = (k_), .type = LOG_F_F64, .as.f64 = (v_) }
#define LOG_F32(k_, v_) { .key = (k_), .type = LOG_F_F32, .as.f32 = (v_) }
#define LOG_JSON_TEXT(k_, v_) { .key = (k_), .type = LOG_F_JSON, .as.str = (v_) }
#define LOG_FLAG(k_, v_) { .key = (k_), .type = LOG_F_BOOL, .as.boolean = (v_) }

/* Sets the format and the lowest level. Registers an exit handler that calls log_flush(1000). */
void log_init(enum log_format format, enum log_level lowest);
void log_set_level(enum log_level lowest);
/* Whether records of this level are written. */
bool log_is_enabled(enum log_level level);
/* Sets the prefix of every text message, which is the member "task" in JSON; copied (at most 63
 * bytes). */
void log_set_task(const char *name);
bool log_parse_level(const char *name, enum log_level *out);

/* `event` is a short fixed word ("join", "step"); the message is for a person. */
void log_event(enum log_level level, const char *event, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* As log_event(), with fields, which become members of the JSON object. The text format omits them,
 * so the message must be complete without them. Returns false if write(2) has not taken the whole
 * record: then it waits for stderr or is lost, and is not written if the process is killed now.
 * Returns true if the level is not written. */
bool log_record(enum log_level level, const char *event, const struct log_field *fields,
                uint32_t n_fields, const char *fmt, ...) __attribute__((format(printf, 5, 6)));

#define log_debug(event_, ...) log_event(LOG_DEBUG, event_, __VA_ARGS__)
#define log_info(event_, ...) log_event(LOG_INFO, event_, __VA_ARGS__)
#define log_warn(event_, ...) log_event(LOG_WARN, event_, __VA_ARGS__)
#define log_error(event_, ...) log_event(LOG_ERROR, event_, __VA_ARGS__)

/* Returns true for LOG_TEXT. A table is then one record per line; in JSON it is a field of one
 * record. */
bool log_is_text(void);

/* Writes complete lines of the log of another process (a child) unchanged. */
void log_raw(const char *bytes, size_t n);

/* Waits until all queued records are written, for at most `ms` milliseconds. Called before the
 * process exits. */
void log_flush(unsigned ms);

/* Draws `line` as the last line of the terminal, truncated to its width; NULL removes the line.
 * Does nothing unless log_progress_wanted(). */
void log_progress(const char *line);
bool log_progress_wanted(void); /* stderr is a terminal and the format is text */

#endif
