"""What of the attacks in this directory ends differently in a sandbox made of Landlock."""

from __future__ import annotations

EXISTS = "refused with another error, mostly EACCES or EPERM, because nothing is hidden or mounted read-only"
OPEN = "it can: Landlock does not protect names in a directory that the session writes"
NOT_STARTED = "the session does not start: Landlock can hide nothing in a directory that the session writes"
NO_SOCKETS = "refused with EPERM: there are no such sockets"
NO_QUEUES = "refused with EPERM: there is no shared memory, and there are no queues and semaphores"
NOT_ONE = "init is not process 1, and cannot be signalled at all"
USER = "the user is the same inside and outside, and nothing changes that"
PRIVATE = "/tmp and /home cannot be used; HOME and TMPDIR name directories of the session's own"

TOKEN = "the port is on the machine's loopback interface, and refuses what comes without the session's token"

DIFFERENT: dict[str, str] = {
    # files
    "the_hosts_secrets_do_not_exist": EXISTS,
    "nothing_is_at_the_top_that_is_not_needed": EXISTS,
    "other_homes_do_not_exist": EXISTS,
    "the_system_is_read_only": EXISTS,
    "the_root_directory_is_read_only_to_its_owner": EXISTS,
    "interpreter_and_packages_are_read_only": EXISTS,
    "the_next_session_finds_the_system_as_it_was": PRIVATE,
    "links_out_of_the_workspace_lead_nowhere": EXISTS,
    "the_null_device_of_standard_input_is_the_sandboxs": EXISTS,
    "devices_keep_their_mode": EXISTS,
    "the_running_interpreter_keeps_its_attributes": EXISTS,
    "the_mount_that_the_interpreter_runs_from_is_read_only": "there are no mounts of its own",
    "secrets_are_masked": NOT_STARTED,
    "variables_that_code_makes_where_nothing_is_kept_are_not_read": NOT_STARTED,
    "a_secret_behind_a_link_is_masked_too": NOT_STARTED,
    "a_link_in_the_place_of_a_secret_takes_nothing_from_the_next_session": NOT_STARTED,
    "what_is_in_memory_can_be_filled_but_not_overfilled": PRIVATE,
    "odd_things_in_the_workspace_hang_nobody": NO_SOCKETS,
    # system calls
    "odd_address_families_do_not_exist": NO_SOCKETS,
    "odd_protocols_do_not_exist": NO_SOCKETS,
    "sockets_take_no_programs_and_no_layers": NO_SOCKETS,
    "sets_of_semaphores_are_small": NO_QUEUES,
    "watches_and_pending_signals_are_few": "there are no watches; pending signals have the user's own limit",
    "nothing_can_be_typed_into_a_terminal": "there are no terminals",
    "the_terminals_of_a_session_are_few": "there are no terminals",
    "a_program_in_memory_is_as_confined_as_any": PRIVATE,
    # processes
    "a_session_cannot_map_users_again": EXISTS,
    "no_file_of_proc_can_be_read_that_is_for_root_only": EXISTS,
    "the_kernels_settings_are_read_only": EXISTS,
    "there_is_nobody_to_become": USER,
    "programs_with_set_id_bits_change_nothing": USER,
    "there_are_no_capabilities_and_no_new_privileges": "there are none, but an ordinary user cannot empty the bounding set, which gives nothing without privileges",
    "memory_that_is_shared_with_the_past_is_named": "it is not: a copy cannot read its own memory map",
    "processes_outside_do_not_exist": "they exist for `kill`, which is refused with EPERM; /proc does not show them",
    "process_1_ignores_what_would_end_it": NOT_ONE,
    "a_descriptor_of_the_host_cannot_be_signalled": "the host can be named as the owner of a descriptor, and gets no signal",
    "a_fork_has_the_same_namespaces_and_limits": "there are no namespaces; the limits are the same",
    "a_daemon_ends_with_its_session": PRIVATE,
    "a_fork_bomb_stops_at_the_limit": "RLIMIT_NPROC counts all processes of the user, and does not hold root",
    # memory
    **{
        f"a_session_over_its_memory_dies_and_its_result_names_the_limit[{where}]": outcome
        for where, outcome in (
            ("in files", PRIVATE),
            ("in sockets", "the buffers of sockets are not counted"),
            ("in large sockets", "the buffers of sockets are not counted"),
            ("in segments", NO_QUEUES),
            ("in queues", NO_QUEUES),
        )
    },
    # libraries
    **{
        f"it_works_in_a_sandbox[{what}]": outcome
        for what, outcome in (
            *((f"pool by {how}", NO_QUEUES) for how in ("fork", "spawn", "fork server")),
            ("process pool", NO_QUEUES),
            ("shared memory", NO_QUEUES),
            ("manager", NO_SOCKETS),
            ("a terminal", "there are no terminals"),
        )
    },
    "shell_cells_work_in_a_sandbox": "they work, with another HOME",
    # programs
    "forks_still_work": NO_QUEUES,
    "a_running_command_is_out_of_reach": "it cannot be seen at all",
    "what_watches_programs_is_out_of_reach": "it cannot be seen at all",
    "code_that_kills_a_verifier_or_its_watcher_gets_no_verdict": "it cannot be seen at all",
    "what_code_changes_around_a_command_is_shown_and_its_own_packages_are_not_on_the_way": EXISTS,
    # tools
    "registry_and_record_do_not_exist_inside": EXISTS,
    "garbage_on_the_port_is_no_call_and_the_port_goes_on": TOKEN,
    "patching_the_runner_changes_nothing_on_the_host": TOKEN,
    "another_sessions_tool_port_is_in_another_network": TOKEN,
    # network
    "no_address_can_be_reached": NO_SOCKETS,
    "no_address_of_version_6_can_be_reached": EXISTS,
    "loopback_works_within_the_session": NO_SOCKETS,
    "the_hosts_abstract_sockets_are_not_the_sessions": NO_SOCKETS,
    "another_sessions_listener_and_workspace_are_out_of_reach": NO_SOCKETS,
    "shared_memory_and_queues_are_each_sessions_own": NO_QUEUES,
    "the_channel_gives_nothing_but_the_hosts_frames": NO_SOCKETS,
    # workspaces
    "a_workspace_given_through_a_link_is_the_directory_behind_it": EXISTS,
    "a_session_beneath_another_does_not_see_the_rest": EXISTS,
    "two_sessions_in_one_workspace_share_its_files_and_nothing_else": EXISTS,
    "a_workspace_that_is_not_to_be_written_is_read": EXISTS,
    # planting
    "what_runs_code_is_read_only": OPEN,
    "what_runs_code_cannot_be_made_in_a_project": OPEN,
    "what_runs_code_cannot_be_made_in_other_directories_either": OPEN,
    "a_directory_in_a_repository_is_a_part_of_it": OPEN,
    "nothing_is_in_the_way_where_there_is_no_project": OPEN,
    "what_a_policy_denies_cannot_be_made": NOT_STARTED,
    "what_a_protected_link_leads_to_is_protected": OPEN,
    "a_repository_is_read_only": OPEN,
    "a_repository_and_start_up_files_can_be_made": "it can, and so can everything else",
    "a_repository_that_lies_elsewhere_cannot_be_exchanged": OPEN,
    "a_link_that_one_session_leaves_does_not_stop_the_next": OPEN,
    "a_workspace_that_cannot_be_written_gets_no_placeholders": EXISTS,
    "the_way_to_something_protected_cannot_be_renamed": OPEN,
    "the_git_of_the_host_runs_nothing_after_a_session": OPEN,
    "git_at_the_top_runs_nothing_of_a_submodule": OPEN,
    "variables_of_servers_cannot_be_planted": "the file can be made, and is not read: the host has read it before",
}
"""Names of tests, without ``test_``, with the parameters if only these differ; and how the attack ends there."""
