/* log.h - one line, or one JSON object, per event.
 *
 * Only daemon/ logs; a library returns its error or reports through a callback. Text lines go to
 * stderr as `2026-01-31T12:00:00.123Z INFO  worker 1: message`; with LOG_JSON every record is one
 * object {"time":..., "level":..., "event":..., "message":..., fields...}. A progress line on a
 * terminal (log_progress) is wiped before a record is written and drawn again after it.
 * Threads: any. A record is one write(2), so lines of several processes do not mix. No call waits for stderr: up to 256
 * KiB of records wait for it, further ones are lost and counted. */
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
        const char *str; /* LOG_F_JSON: a value in JSON, put in as it is */
        int64_t i64;
        uint64_t u64;
        double f64; /* printed so that it reads back exactly (%.17g, shortest that round-trips) */
        float f32;  /* likewise as a float */
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

/* At exit() what waits for stderr is written, for at most 1 s. */
void log_init(enum log_format format, enum log_level lowest);
void log_set_level(enum log_level lowest);
/* Records of this level are written, not dropped. */
bool log_shows(enum log_level level);
/* What stands before every text message and as "task" in JSON; copied (at most 63 bytes). */
void log_set_task(const char *name);
bool log_parse_level(const char *name, enum log_level *out);

/* `event` is a short fixed word ("join", "step"); the message is for a person. */
void log_event(enum log_level level, const char *event, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* With fields: in text they are not shown (the message says it all), in JSON they are members.
 * Returns false if write(2) has not taken the whole record: then the record waits for stderr or is
 * lost, and is not written if the process is killed now. Returns true if the level is not shown. */
bool log_record(enum log_level level, const char *event, const struct log_field *fields,
                uint32_t n_fields, const char *fmt, ...) __attribute__((format(printf, 5, 6)));

#define log_debug(event_, ...) log_event(LOG_DEBUG, event_, __VA_ARGS__)
#define log_info(event_, ...) log_event(LOG_INFO, event_, __VA_ARGS__)
#define log_warn(event_, ...) log_event(LOG_WARN, event_, __VA_ARGS__)
#define log_error(event_, ...) log_event(LOG_ERROR, event_, __VA_ARGS__)

bool log_is_text(void); /* a table then takes a record a line; in JSON it is a field of one */

/* Lines of somebody else's log (a child's), complete with newline, as they are. */
void log_raw(const char *bytes, size_t n);

/* Waits until what stderr did not take before is written, for at most `ms`: to be called before the process ends. */
void log_flush(unsigned ms);

/* Draws `line` as the terminal's last line (text format and stderr a terminal; else nothing is
 * done). Cut to the terminal's width. NULL removes it. */
void log_progress(const char *line);
bool log_progress_wanted(void); /* stderr is a terminal and the format is text */

#endif
