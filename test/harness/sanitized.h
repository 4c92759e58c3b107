/* sanitized.h - detects sanitized builds, and scales the time limits of tests. */
#ifndef TEST_HARNESS_SANITIZED_H
#define TEST_HARNESS_SANITIZED_H

#if defined(__SANITIZE_ADDRESS__)
#define SANITIZED_ADDRESS 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SANITIZED_ADDRESS 1
#endif
#endif
#ifndef SANITIZED_ADDRESS
#define SANITIZED_ADDRESS 0
#endif

#if defined(__SANITIZE_THREAD__)
#define SANITIZED_THREAD 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define SANITIZED_THREAD 1
#endif
#endif
#ifndef SANITIZED_THREAD
#define SANITIZED_THREAD 0
#endif

enum { SLOW = SANITIZED_ADDRESS || SANITIZED_THREAD ? 8 : 1 }; /* factor for time limits */
enum { EVERY = SLOW > 1 ? 3 : 1 }; /* with sanitizers a long test runs one of EVERY cases */

#endif
