(* The checker as a command. Trusted: that this file and json.ml hand the schedule of the file to
   [Checker.check], and print what it answers.

     latecomer-kernel FILE...     one line of JSON per file
     latecomer-kernel -           one schedule per line of standard input
     latecomer-kernel --optimal FILE < REFUTATION
                                  is it right, and every shorter one refuted? (collectives, pipelines)
     latecomer-kernel --optimal-for-arrivals FILE
                                  is it right, and at the bound for its ranks' arrivals?
     latecomer-kernel --arrivals-bound RANKS CHUNKS ARRIVAL,...
                                  that bound: rounds after the last arrival
     latecomer-kernel --formula RANKS CHUNKS ARRIVAL,... ROUNDS duplex|matching
                                  the formula that a refutation must refute
     latecomer-kernel --closed-form ring N | transpose N INCAST | straggler N K | program N K RANK

   Exit code: 0 all accepted, 1 some refuted, 2 some malformed or not covered, 3 a crash (out of memory or stack). *)

open Checker
open Fields
open Numbers

(* -- the file ------------------------------------------------------------------------------ *)

(* An index that is negative is as far out of range as one that is too large. *)
let index = function
  | Json.Int i -> number (if i < 0 then max_int else i)
  | _ -> malformed "an index must be an integer"

let operation = function
  | Json.String "copy" -> Copy
  | Json.String "reduce" -> Reduce
  | _ -> malformed "op must be \"copy\" or \"reduce\""

let transfer = function
  | Json.List [src; dst; chunk; op] ->
    { src = index src; dst = index dst; chunk = index chunk; op = operation op }
  | _ -> malformed "a transfer must be [src, dst, chunk, op]"

let ranks_listed what ranks v =
  let l = List.map (in_range what 0 (ranks - 1)) (list what v) in
  if List.length (List.sort_uniq compare l) < List.length l then malformed (what ^ " names a rank twice");
  List.map number l

let phase ranks v =
  let field = fields "a phase" ["name"; "absent"; "rounds"] v in
  (match required "name" (field "name") with Json.String _ -> () | _ -> malformed "name must be a string");
  let round v = List.map transfer (list "a round" v) in
  { absent = ranks_listed "absent" ranks (required "absent" (field "absent"));
    rounds = List.map round (list "rounds" (required "rounds" (field "rounds"))) }

let ports = function
  | None | Some (Json.String "duplex") -> Duplex
  | Some (Json.String "matching") -> Matching
  | Some v ->
    let field = fields "ports" ["incast"] v in
    Incast (number (in_range "incast" 1 16384 (required "incast" (field "incast"))))

let schedule v =
  let field = fields "the file"
      ["format"; "kind"; "ranks"; "chunks"; "late"; "ports"; "phases"; "meta"] v in
  if field "format" <> Some (Json.String "latecomer/1") then malformed "format must be \"latecomer/1\"";
  if field "kind" <> Some (Json.String "allreduce") then malformed "kind must be \"allreduce\"";
  let ranks = in_range "ranks" 2 16384 (required "ranks" (field "ranks")) in
  let chunks = in_range "chunks" 1 1048576 (required "chunks" (field "chunks")) in
  { ranks = number ranks; chunks = number chunks;
    late = (match field "late" with None -> [] | Some v -> ranks_listed "late" ranks v);
    ports = ports (field "ports");
    phases = List.map (phase ranks) (list "phases" (required "phases" (field "phases"))) }

(* -- the answer ---------------------------------------------------------------------------- *)

let verdict = function Some true -> "\"proved\"" | Some false -> "\"refuted\"" | None -> "\"unknown\""

let optimal = function Some true -> "true" | Some false -> "false" | None -> "\"unknown\""

let print_report r =
  Printf.printf
    "{\"accepted\":%b,\"properties\":{\"well_formed\":%s,\"ports\":%s,\"absence\":%s,\
     \"exactly_once\":%s,\"same_bits\":%s,\"hazards\":%s},\
     \"completion_rounds\":%d,\"lower_bound\":%d,\"optimal\":%s}\n"
    (accepted r) (verdict (Some r.is_well_formed)) (verdict r.fits_its_ports)
    (verdict r.respects_absence) (verdict r.is_exactly_once) (verdict r.has_same_bits)
    (verdict r.is_hazard_free) (int_of r.rounds_to_complete) (int_of r.bound)
    (optimal r.is_optimal);
  flush stdout

let judge text =
  match
    let v = Json.parse text in
    if Pipelines.is_pipeline v then Pipelines.judge v
    else if Blocks.is_program v then Blocks.judge v
    else if Devices.is_device v then Devices.judge schedule v
    else let r = check (schedule v) in print_report r; if accepted r then 0 else 1
  with
  | code -> code
  | exception Json.Malformed what ->
    Printf.printf "{\"accepted\":false,\"malformed\":%S}\n" what; flush stdout; 2

let read name =
  let channel = open_in_bin name in
  let text = really_input_string channel (in_channel_length channel) in
  close_in channel; text

let print_optimal proved =
  Printf.printf "{\"optimal\":%s}\n" (if proved then "true" else "\"unknown\"");
  if proved then 0 else 1

let optimal_by_refutation name =
  let v = Json.parse (read name) in
  print_optimal
    (if Pipelines.is_pipeline v then Pipelines.optimal v (Cases.read stdin)
     else certified_optimal (schedule v) (Refute.steps stdin []))

let question ranks chunks arrival rounds ports =
  let in_pairs = match ports with
    | "duplex" -> false | "matching" -> true | _ -> failwith "duplex or matching" in
  let n i = number (int_of_string i) in
  { of_ranks = n ranks; of_chunks = n chunks; in_rounds = n rounds; in_pairs;
    arrival = List.map n (String.split_on_char ',' arrival) }

let rec judge_lines worst =
  match input_line stdin with
  | line -> judge_lines (max worst (judge line))
  | exception End_of_file -> worst

let print_rounds rounds =
  let op = function Copy -> "copy" | Reduce -> "reduce" in
  let transfer t =
    Printf.sprintf "[%d,%d,%d,\"%s\"]" (int_of t.src) (int_of t.dst) (int_of t.chunk) (op t.op) in
  let bracket f l = "[" ^ String.concat "," (List.map f l) ^ "]" in
  print_endline (bracket (bracket transfer) rounds)

(* The waiting phase, on a line of its own (two ranks have none), and the completion. *)
let straggler ranks k =
  match List.map (fun p -> p.rounds) (closed_form ranks k).phases with
  | [completion] -> print_rounds []; print_rounds completion
  | phases -> List.iter print_rounds phases

let () =
  let n i = number (int_of_string i) in
  exit
    (try match List.tl (Array.to_list Sys.argv) with
       | ["--closed-form"; "ring"; ranks] -> print_rounds (all_rounds (ring_schedule (n ranks))); 0
       | ["--closed-form"; "transpose"; ranks; incast] ->
         print_rounds (all_rounds (transpose (n ranks) (n incast))); 0
       | ["--closed-form"; "straggler"; ranks; k] -> straggler (n ranks) (n k); 0
       | ["--closed-form"; "program"; ranks; k; rank] ->
         print_rounds (waiting_of (n ranks) (n k) (n rank));
         print_rounds (completion_of (n ranks) (n k) (n rank)); 0
       | ["--optimal"; file] -> optimal_by_refutation file
       | ["--optimal-for-arrivals"; file] ->
         print_optimal (optimal_for_arrivals (schedule (Json.parse (read file))))
       | ["--arrivals-bound"; ranks; chunks; arrival] ->
         print_endline (string_of_int (int_of (arrivals_bound (question ranks chunks arrival "0" "duplex")))); 0
       | ["--formula"; ranks; chunks; arrival; rounds; ports] ->
         Refute.print_formula (question ranks chunks arrival rounds ports); 0
       | ["-"] -> judge_lines 0
       | (_ :: _) as files -> List.fold_left (fun worst f -> max worst (judge (read f))) 0 files
       | [] -> prerr_endline "usage: latecomer-kernel FILE... | -"; 2
     with
     | Stack_overflow | Out_of_memory -> prerr_endline "out of stack or memory"; 3
     | Json.Malformed what | Failure what | Sys_error what | Pipelines.Outside what ->
       prerr_endline what; 2)
