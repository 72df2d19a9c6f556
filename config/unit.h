/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The user that runs the engine of this host, by its systemd unit, with the folders and the process
 * of the unit; becoming that user, to see files as it does. For --check and the doctor; one thread.
 */
#ifndef CONFIG_UNIT_H
#define CONFIG_UNIT_H

#include <stdbool.h>

#include "config/limits.h"

#define UNIT_NAME "peercache-engine.service"

struct unit {
	char user[NAME_BYTES_MAX]; /* "root" if the unit names none */
	char runtime[256];         /* folders below /run that systemd makes for it, by spaces */
	long pid;                  /* of its process; 0: it does not run */
};

/* Asks systemctl, for a few seconds at most. False: this host lacks that unit, or systemd. */
bool unit_read(struct unit *ret);
/* Does systemd make that folder when it starts the unit? */
bool unit_makes(const struct unit *unit, const char *folder);

/* Can this process see files as that user? 0; -EPERM: only root and that user; -ENOENT: no user. */
int user_allowed(const char *name);
/* Becomes that user with its groups, for good. The same results, or another -errno. */
int user_become(const char *name);

#endif
