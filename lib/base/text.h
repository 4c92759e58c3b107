/* text.h - small questions about strings. Threads: any. */
#ifndef BASE_TEXT_H
#define BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The candidate nearest to `word` by Damerau-Levenshtein distance, if it is near enough to be a
 * slip of the pen (distance <= 1 + length / 4); else NULL. Case counts as half a step. */
const char *text_nearest(const char *word, const char *const *candidates, size_t n);
/* Bytes of the well-formed UTF-8 character at s (1 to 4), or 0; reads at most n bytes. */
size_t text_utf8_char(const char *s, size_t n);
/* The longest length <= n at which s, of at least n bytes, can be cut between two characters. */
size_t text_utf8_cut(const char *s, size_t n);
bool text_is_utf8(const char *s, size_t n); /* well-formed, no surrogates, no overlong forms */
/* Decimal digits only, no sign, no blanks, no leading zeros but "0"; false if not or > max. */
bool text_u64(const char *s, uint64_t max, uint64_t *out);
bool text_starts(const char *s, const char *prefix);
/* Bytes for a person: "1.5 GiB". Writes at most n. */
void text_bytes(char *out, size_t n, uint64_t bytes);
/* "3 h 20 min", "12.3 s", "45 ms". */
void text_duration(char *out, size_t n, uint64_t ns);

#endif
