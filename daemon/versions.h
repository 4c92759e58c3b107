/* versions.h - what two releases must have in common so that their tasks can train together. */
#ifndef DAEMON_VERSIONS_H
#define DAEMON_VERSIONS_H

enum { VERSIONS_PROTOCOL_BYTES = 96 };

/* Digest of the source code that decides the bits of a step, without comments; the Makefile writes
 * it. */
extern const char versions_code[];

/* Writes the versions of the messages between tasks: "control 1, data 3, ..."; returns `out`. */
const char *versions_protocol(char out[VERSIONS_PROTOCOL_BYTES]);

#endif
