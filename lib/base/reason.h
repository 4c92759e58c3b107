/* reason.h - the description of an errno value, for messages. */
#ifndef BASE_REASON_H
#define BASE_REASON_H

/* Like strerror(), but thread-safe. The text belongs to the calling thread and is valid until its
 * next call; never NULL. */
const char *reason_text(int errnum);

#endif
