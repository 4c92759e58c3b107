/* job_keys_priv.h - the tables of the job file's keys, one for each topic, and short names for their
 * rows. A new key is a row in the table of its object.
 *
 * Ranges: real numbers must be valid as float32 (1e-30 to 1e30), and products of counts (steps
 * times batch, epochs times records) must fit in 64 bits. */
#ifndef CONF_JOB_KEYS_PRIV_H
#define CONF_JOB_KEYS_PRIV_H

#include <stddef.h>

#include "base/check.h"
#include "conf/job_keys.h"

struct conf_key_table {
    const struct conf_key *rows;
    size_t n;
};
extern const struct conf_key_table conf_keys_model;     /* /name, /model */
extern const struct conf_key_table conf_keys_data;      /* /data */
extern const struct conf_key_table conf_keys_train;     /* /train, /elastic, /detection, /health */
extern const struct conf_key_table conf_keys_phases;    /* /train/phases */
extern const struct conf_key_table conf_keys_optimizer; /* /optimizer */
extern const struct conf_key_table conf_keys_ps;        /* /parameter_server */
/* /communication, /checkpoint, /evaluator, /summary, /log, /export */
extern const struct conf_key_table conf_keys_run;

#define AT(field_) offsetof(struct conf, field_)
#define WORDS(words_) .words = words_, .n_words = COUNT_OF(words_)
#define BIT(word_) (1u << (word_))

#define OBJECT CONF_KEY_OBJECT
#define STRING CONF_KEY_STRING
#define PATH CONF_KEY_PATH
#define BOOL CONF_KEY_BOOL
#define ENUM CONF_KEY_ENUM
#define EITHER CONF_KEY_EITHER
#define U32 CONF_KEY_U32
#define U64 CONF_KEY_U64
#define F64 CONF_KEY_F64
#define PORTS CONF_KEY_PORTS
#define LIST CONF_KEY_LIST
#define MAP CONF_KEY_MAP
#define CHOICE CONF_KEY_CHOICE
#define COUNT_OR_OBJECT CONF_KEY_COUNT_OR_OBJECT
#define COUNT_OR_WORD CONF_KEY_COUNT_OR_WORD
#define REQUIRED CONF_KEY_REQUIRED
#define NULLABLE CONF_KEY_NULLABLE
#define PATTERN CONF_KEY_PATTERN
#define ABOVE_MIN CONF_KEY_ABOVE_MIN
#define BELOW_MAX CONF_KEY_BELOW_MAX
#define UNIQUE CONF_KEY_UNIQUE
#define ALLOCATED CONF_KEY_ALLOCATED
#define OPTIONAL CONF_KEY_OPTIONAL
#define FREE CONF_KEY_FREE
#define LIVE (CONF_KEY_FREE | CONF_KEY_LIVE)

#endif
