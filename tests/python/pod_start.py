# SPDX-License-Identifier: Apache-2.0
"""Starts the first process of an imitated container: pod_start.py COMMAND...

With a filter of system calls like that of container runtimes: what they refuse to a container that
has no capability fails here, too. $PEERCACHE_TEST_MAY: more names, which its capabilities permit.
"""

import ctypes
import errno
import os
import sys

REFUSED = """
    acct add_key bpf clock_adjtime clock_settime create_module delete_module fanotify_init
    finit_module fsconfig fsmount fsopen fspick get_mempolicy init_module ioperm iopl
    io_uring_enter io_uring_register io_uring_setup kcmp kexec_file_load kexec_load keyctl
    lookup_dcookie mbind migrate_pages mount mount_setattr move_mount move_pages
    name_to_handle_at open_by_handle_at open_tree perf_event_open pidfd_getfd pivot_root
    process_madvise quotactl quotactl_fd reboot request_key set_mempolicy
    set_mempolicy_home_node setdomainname sethostname setns settimeofday swapoff swapon syslog
    umount2 unshare userfaultfd vhangup
""".split()
ALLOW, ERRNO = 0x7fff0000, 0x00050000
NO_NEW_PRIVS = 38


def main():
    seccomp = ctypes.CDLL("libseccomp.so.2")
    seccomp.seccomp_init.restype = ctypes.c_void_p
    context = ctypes.c_void_p(seccomp.seccomp_init(ctypes.c_uint32(ALLOW)))
    may = os.environ.pop("PEERCACHE_TEST_MAY", "").split()
    # clone3() does not exist there, because a filter cannot read its arguments
    for name, error in [(name, errno.EPERM) for name in REFUSED] + [("clone3", errno.ENOSYS)]:
        number = seccomp.seccomp_syscall_resolve_name(name.encode())
        if number >= 0 and name not in may:
            failed = seccomp.seccomp_rule_add(context, ctypes.c_uint32(ERRNO | error), number, 0)
            assert not failed, name
    assert ctypes.CDLL(None).prctl(NO_NEW_PRIVS, 1, 0, 0, 0) == 0
    assert seccomp.seccomp_load(context) == 0
    os.execvp(sys.argv[1], sys.argv[1:])


if __name__ == "__main__":
    main()
