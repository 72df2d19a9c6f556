/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The keeper: it starts an engine, starts it again whenever it ends, keeps what the engine stores
 * in it, and owns the socket of clients. One thread runs its loop, keeper_run(); a second one waits
 * for the lock of the clients' file.
 */
#ifndef KEEPER_KEEPER_H
#define KEEPER_KEEPER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "engine/keeper/notify.h"
#include "engine/keeper/socket_file.h"

/* pause before a restart, in ms: doubled after each run in which the engine was not ready */
#define KEEPER_PAUSE_MS 100u
#define KEEPER_PAUSE_MAX_MS 30000u
/* the engine refuses its settings with this exit status; it is not started again */
#define KEEPER_SETTINGS_REFUSED 2
/* exit status when the engine's program cannot be run */
#define KEEPER_NO_PROGRAM 127

struct keeper_options {
	const char *socket;      /* engine.socket */
	const char *clients;     /* file whose lock clients hold; NULL: none */
	int lock_fd;             /* descriptor that holds the lock on <socket>.keeper; -1: none */
	int ready_fd;            /* gets one byte when the engine serves first; -1: none */
	unsigned stop_timeout_s; /* time-out of an orderly end */
	char *const *command;    /* the engine's program and its arguments; NULL last */
	unsigned words;          /* number of words in `command` */
};

/*
 * An engine stores three descriptors for a rail, one for each client's process and one for each
 * channel, and those of engines before it while a client copies into a slot of the channel.
 */
#define STORE_FDS_MAX 640u

struct stored {
	int fd;
	char name[NOTIFY_NAME_BYTES];
};

/* The descriptors that an engine stored in the keeper. The next engine gets all of them. */
struct fd_store {
	unsigned count;
	struct stored entry[STORE_FDS_MAX];
};

struct keeper {
	struct keeper_options options;
	char **argv; /* the command with --set engine.socket=... */
	struct socket_file listener;
	char notify_path[SOCKET_PATH_BYTES];
	int notify;   /* socket for messages of the engine */
	int signals;  /* signalfd: SIGTERM, SIGINT, SIGCHLD */
	int unused;   /* eventfd: no client holds the lock any more; -1: not watched */
	int clients;  /* descriptor of options.clients; -1: none */
	int alive[2]; /* pipe: engines have the read end, this process alone the write end */
	char lock_path[SOCKET_PATH_BYTES + 16]; /* "" until this process holds the lock */
	struct fd_store store;
	pid_t engine;                    /* 0: no engine runs */
	bool ready;                      /* the engine that runs, or ran last, has sent READY=1 */
	bool was_ready;                  /* an engine has sent READY=1 */
	bool ending;                     /* the engine was asked to end and is not started again */
	bool foreign_told;               /* a message of another process was logged */
	unsigned pause_ms;               /* pause before the next restart */
	uint64_t start_at_ns;            /* CLOCK_MONOTONIC of the next start; 0: none is due */
	uint64_t deadline_ns;            /* an orderly end takes longer than allowed; 0: none */
	uint64_t began_ns;               /* start of the engine that runs */
	struct notify_datagram datagram; /* the message that is being read */
};

/*
 * Takes the lock, the socket of clients and all other resources. Returns 0 or -errno after logging
 * the reason; then call keeper_close().
 */
int keeper_open(struct keeper *keeper, const struct keeper_options *options);
/* Runs engines until the keeper ends. Returns its exit status. */
int keeper_run(struct keeper *keeper);
/* Removes the files. The engine has ended. */
void keeper_close(struct keeper *keeper);

#endif
