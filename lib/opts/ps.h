/* ps.h - what a job defines about its parameter servers: plain values, which lib/conf fills and lib/ps,
 * lib/train and the daemon read. */
#ifndef OPTS_PS_H
#define OPTS_PS_H

#include <stdint.h>

/* Which embedding tables are kept on parameter servers. */
enum ps_tables {
    PS_TABLES_LISTED, /* those that a pattern matches */
    PS_TABLES_AUTO,   /* all of at least min_shard_bytes */
    PS_TABLES_NONE,
};
enum ps_dense { PS_DENSE_WORKERS, PS_DENSE_SERVERS /* not supported: lib/conf refuses it */ };
enum ps_staleness { PS_STALENESS_EXACT, PS_STALENESS_BOUNDED /* not supported: lib/conf refuses it */ };

enum { PS_STALENESS_MAX = 4 };

struct ps_settings {
    enum ps_tables tables;
    const char **patterns; /* [n_patterns] over initializer names, for fnmatch(); of PS_TABLES_LISTED */
    uint32_t n_patterns;
    uint64_t min_shard_bytes; /* tables of fewer bytes stay on the workers; of PS_TABLES_AUTO */
    enum ps_dense dense;      /* where the other parameters are */
    uint32_t replicas;        /* parameter servers that hold the same rows, 1..8 */
    uint32_t staleness;       /* step t reads the rows after step max(0, t - 1 - staleness); <= PS_STALENESS_MAX */
    enum ps_staleness staleness_kind;
    uint32_t lookahead_steps; /* steps whose rows are requested before the step begins; 0: none */
};

#endif
