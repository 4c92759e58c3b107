/* text.h - string helpers: nearest word, UTF-8, numbers, units. Threads: any. */
#ifndef BASE_TEXT_H
#define BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Returns the candidate with the smallest Damerau-Levenshtein distance to `word`, if `word` is
 * probably a typo of it (distance <= 1 + length / 4); else NULL. A difference in case counts
 * half. */
const char *text_nearest(const char *word, const char *const *candidates, size_t n);
/* Returns the length (1 to 4 bytes) of the well-formed UTF-8 character at s; 0: not well-formed.
 * Reads at most n bytes. */
size_t text_utf8_char(const char *s, size_t n);
/* Returns the largest length <= n at which s, of at least n bytes, can be truncated between two
 * characters. */
size_t text_utf8_cut(const char *s, size_t n);
bool text_is_utf8(const char *s, size_t n); /* well-formed, no surrogates, no overlong forms */
/* Parses a number of decimal digits without sign, blanks or leading zeros. false: another form, or
 * above max. */
bool text_u64(const char *s, uint64_t max, uint64_t *out);
bool text_starts(const char *s, const char *prefix);
/* Writes to `out` [2 * strlen(s) + 1] the pattern of glob(3) that matches `s` alone: a backslash precedes
 * each special character, and each brace, so that no mark in braces is found in the result. */
void text_quote_pattern(const char *s, char *out);
/* Removes the backslashes of a pattern in place: the result is the file that it names if its other
 * characters mean themselves. */
void text_unquote_pattern(char *s);
/* Formats a size for a person, such as "1.5 GiB". Writes at most n bytes. */
void text_bytes(char *out, size_t n, uint64_t bytes);
/* Formats a duration for a person, such as "3 h 20 min", "12.3 s", "45 ms". Writes at most n
 * bytes. */
void text_duration(char *out, size_t n, uint64_t ns);
/* Formats a rate, such as samples per second, with at least three significant digits and without an exponent: "4704", "15.6",
 * "0.0625"; "0" for 0. Writes at most n bytes. */
void text_rate(char *out, size_t n, double rate);

#endif
