/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens the members, and connects them with the rooms above, which they do not know: see
 * struct member_events. Tests that run members with a directory open them by this, too. Control
 * plane's thread only.
 */
#ifndef CONTROL_MEMBER_EVENTS_H
#define CONTROL_MEMBER_EVENTS_H

struct control;

/* Returns 0 or -errno, as members_open(); members_close() closes them. */
int control_members_open(struct control *control);

#endif
