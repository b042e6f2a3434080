(* Pipeline schedules. Trusted: that [pipeline] hands [Checker.check_pipeline] what the file says.

   Times are scaled by the power of ten that makes all of them whole: ticks. What the theorems do not
   cover is not judged but named: [Outside]. *)

open Checker
open Fields
open Numbers

exception Outside of string

let outside what = raise (Outside what)

let is_pipeline = function
  | Json.Object l -> List.assoc_opt "kind" l = Some (Json.String "pipeline")
  | _ -> false

(* A number as (digits, how many of them are decimals). *)
let digits what = function
  | Json.Int i when i >= 0 && i < max_int -> (string_of_int i, 0)
  | Json.Decimal text when text.[0] <> '-' ->
    let dot = String.index text '.' in
    let decimals = String.length text - dot - 1 in
    (String.sub text 0 dot ^ String.sub text (dot + 1) decimals, decimals)
  | Json.Other -> outside (what ^ " with an exponent")
  | _ -> malformed (what ^ " must be a number, 0 or more")

(* So many of units of 1 / 10^[decimals] each. *)
let scaled what decimals (text, own) =
  let text = text ^ String.make (decimals - own) '0' in
  let rec first i = if i < String.length text - 1 && text.[i] = '0' then first (i + 1) else i in
  let text = String.sub text (first 0) (String.length text - first 0) in
  if String.length text > 18 then outside (what ^ " of more than 18 digits");
  number (int_of_string ("0u" ^ text))

let kind_of letter = match letter with
  | 'F' -> F | 'I' -> I | 'W' -> W | 'B' -> B | _ -> outside "actions other than F, I, W and B"

let action = function
  | Json.String text ->
    let n = String.length text in
    let is_digit c = '0' <= c && c <= '9' in
    let rec letter i = if i < n && is_digit text.[i] then letter (i + 1) else i in
    let at = letter 0 in
    if at = 0 || at > 9 || at = n then malformed ("no action: " ^ text);
    let does = kind_of text.[at] in
    let rest = String.sub text (at + 1) (n - at - 1) in
    if rest = "" || String.length rest > 9 || not (String.for_all is_digit rest) then
      outside "actions other than F, I, W and B";
    let value digits = number (int_of_string ("0u" ^ digits)) in
    { stage = value (String.sub text 0 at); does; microbatch = value rest }
  | _ -> malformed "an action must be a string"

let optional = function Some Json.Other | None -> None | Some v -> Some v

let pipeline v =
  let field = fields "the file"
      ["format"; "kind"; "stages"; "microbatches"; "situation"; "programs"; "meta"] v in
  if field "format" <> Some (Json.String "latecomer/1") then malformed "format must be \"latecomer/1\"";
  let stages = in_range "stages" 1 4096 (required "stages" (field "stages")) in
  let microbatches = in_range "microbatches" 1 65536 (required "microbatches" (field "microbatches")) in
  let programs = List.map (fun p -> List.map action (list "a program" p))
      (list "programs" (required "programs" (field "programs"))) in
  let ranks = List.length programs in
  let situation = fields "situation"
      ["forward"; "backward"; "weight"; "fused"; "links"; "memory"; "sends"]
      (required "situation" (field "situation")) in
  let per_stage name v =
    let l = List.map (digits name) (list name v) in
    if List.length l <> stages then malformed (name ^ " must have one duration per stage");
    l in
  let durations name = per_stage name (required name (situation name)) in
  let forward = durations "forward" and backward = durations "backward" and weight = durations "weight" in
  let fused = Option.map (per_stage "fused") (optional (situation "fused")) in
  let link v =
    let field = fields "a link" ["between"; "latency"; "occupancy"; "duplex"] v in
    let time name = match field name with None -> ("0", 0) | Some v -> digits name v in
    if String.exists (fun c -> c <> '0') (fst (time "occupancy")) then outside "links with occupancy";
    match required "between" (field "between") with
    | Json.List [Json.Int a; Json.Int b] when 0 <= min a b && a <> b && max a b < ranks ->
      (min a b, max a b, time "latency")
    | _ -> malformed "between must be two ranks" in
  let links = match situation "links" with None -> [] | Some v -> List.map link (list "links" v) in
  let ends = List.map (fun (a, b, _) -> (a, b)) links in
  if List.length (List.sort_uniq compare ends) < List.length ends then malformed "a link given twice";
  let times = forward @ backward @ weight @ Option.value fused ~default:[]
              @ List.map (fun (_, _, t) -> t) links in
  let decimals = List.fold_left (fun most (_, d) -> max most d) 0 times in
  if decimals > 9 then outside "more than 9 decimals";
  let ticks = List.map (scaled "a time" decimals) in
  let halves v =
    let text, own = digits "memory" v in
    let twice = 2 * int_of (scaled "memory" own (text, own)) in
    let unit = int_of_float (10. ** float_of_int own) in
    if twice mod unit <> 0 then malformed "memory must be a multiple of 0.5";
    number (twice / unit) in
  let memory = Option.map (fun v -> List.map halves (list "memory" v)) (optional (situation "memory")) in
  (match memory with
   | Some l when List.length l <> ranks -> malformed "memory must have one limit per rank"
   | _ -> ());
  let sum a b = number (int_of a + int_of b) in
  let backward = ticks backward and weight = ticks weight in
  ({ stages = number stages; microbatches = number microbatches;
     forward = ticks forward; backward; weight;
     fused = (match fused with Some l -> ticks l | None -> List.map2 sum backward weight);
     latencies = List.map (fun (a, b, t) -> ((number a, number b), scaled "a latency" decimals t)) links;
     memory; programs },
   decimals)

(* A number of any size, as a decimal text. *)
let decimal n =
  let double_plus bit digits =   (* the last digit first *)
    let rec go carry = function
      | d :: rest -> let v = 2 * d + carry in (v mod 10) :: go (v / 10) rest
      | [] -> if carry > 0 then [carry] else [] in
    go bit digits in
  let rec of_positive = function
    | XH -> [1] | XO p -> double_plus 0 (of_positive p) | XI p -> double_plus 1 (of_positive p) in
  match n with
  | N0 -> "0"
  | Npos p -> String.concat "" (List.rev_map string_of_int (of_positive p))

let int_of_z = function Z0 -> 0 | Zpos p -> int_of_positive p | Zneg p -> - (int_of_positive p)

let verdict ok = if ok then "\"proved\"" else "\"refuted\""

let print complete deadlock_free rest =
  Printf.printf "{\"accepted\":%s,\"properties\":{\"exactly_once\":%s,\"deadlock_free\":%s%s}%s}\n"
    (match rest with Some (order, memory, _) -> string_of_bool (order && memory) | None -> "false")
    (verdict complete)
    (match deadlock_free with Some ok -> verdict ok | None -> "\"unknown\"")
    (match rest with
     | Some (order, memory, _) ->
       Printf.sprintf ",\"loss_order\":%s,\"memory\":%s" (verdict order) (verdict memory)
     | None -> "")
    (match rest with Some (_, _, times) -> times | None -> "");
  flush stdout

let judge v =
  match pipeline v with
  | exception Outside what ->
    Printf.printf "{\"accepted\":false,\"outside\":%S}\n" what; flush stdout; 2
  | p, decimals ->
    match check_pipeline p with
    | NotComplete -> print false None None; 1
    | Deadlock -> print true (Some false) None; 1
    | Undecided -> print true None None; 2
    | Runs (order, memory, span, peaks) ->
      let bound = match places p with Some place -> makespan_bound p place | None -> N0 in
      let times =
        Printf.sprintf
          ",\"decimals\":%d,\"makespan\":%s,\"lower_bound\":%s,\"peak_memory_halves\":[%s]"
          decimals (decimal span) (decimal bound)
          (String.concat "," (List.map (fun z -> string_of_int (int_of_z z)) peaks)) in
      print true (Some true) (Some (order, memory, times));
      if order && memory then 0 else 1

(* Whether the schedule is right and the tree refutes every shorter one. *)
let optimal v tree = certified_makespan (fst (pipeline v)) tree <> None
