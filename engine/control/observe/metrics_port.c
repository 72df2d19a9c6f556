/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the HTTP server listens. The socket is bound early, before memory is made, and listens once
 * the engine serves. Start and stop, control plane's thread.
 */
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "config/log.h"
#include "engine/control/base/control.h"
#include "engine/control/observe/metrics.h"
#include "engine/control/net/net.h"

static const char *host_of(const struct settings *s)
{
	return s->metrics_address[0] ? s->metrics_address : s->cluster_address;
}

/*
 * The engine runs without metrics where nothing was set: several engines of a host have one default
 * port. Returns 0, or `status`: the engine must not start.
 */
static int port_missing(const struct settings *s, int status, const char *why)
{
	const char *name = s->metrics_address[0] ? "metrics.address" : "cluster.address";

	if (!settings_given(s, "metrics", "port") && !settings_given(s, "metrics", "address")) {
		log_warn(
			"metrics: cannot listen at %s port %u (%s): %s; no metrics and no dashboard. Set metrics.port to a free port, or to 0",
			host_of(s), (unsigned)s->metrics_port, name, why);
		return 0;
	}
	log_error(
		"metrics: cannot listen at %s port %u (%s): %s. Set metrics.port to a free port, or to 0, and metrics.address to an address of this host",
		host_of(s), (unsigned)s->metrics_port, name, why);
	return status;
}

/*
 * Binds the first address of the name that this host has. A port in use ends the search: another
 * address of the same name would be a place where no one looks.
 */
int metrics_port_open(struct control *control)
{
	const struct settings *s = control->settings;
	const struct addrinfo hints = {.ai_family = AF_UNSPEC,
		.ai_socktype = SOCK_STREAM,
		.ai_flags = AI_PASSIVE | AI_NUMERICSERV};
	int fd = -EADDRNOTAVAIL, rc;
	struct addrinfo *found;
	char port[8];

	control->metrics_fd = -1;
	if (!s->metrics_port)
		return 0;
	snprintf(port, sizeof(port), "%u", (unsigned)s->metrics_port);
	rc = getaddrinfo(host_of(s), port, &hints, &found);
	if (rc)
		return port_missing(s, -EADDRNOTAVAIL, gai_strerror(rc));
	for (const struct addrinfo *at = found; at && fd < 0 && fd != -EADDRINUSE; at = at->ai_next)
		fd = net_bind(at->ai_addr, at->ai_addrlen);
	freeaddrinfo(found);
	if (fd < 0)
		return port_missing(s, fd, strerror(-fd));
	control->metrics_fd = fd;
	return 0;
}

void metrics_port_close(struct control *control)
{
	if (control->metrics_fd >= 0)
		close(control->metrics_fd);
	control->metrics_fd = -1;
}

/* Of two engines that have bound one port at the same time, listen() refuses the second. */
int metrics_port_listen(struct control *control, int *ret_fd)
{
	int fd = control->metrics_fd, one = 1, error;

	*ret_fd = -1;
	if (fd < 0)
		return 0;
	/* accepted sockets inherit it: the next engine may bind while they are in TIME_WAIT */
	(void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (listen(fd, SOMAXCONN) == 0) {
		control->metrics_fd = -1;
		*ret_fd = fd;
		return 0;
	}
	error = errno;
	metrics_port_close(control);
	return port_missing(control->settings, -error, strerror(error));
}
